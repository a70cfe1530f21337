"""What TensorBoard's own reader finds in the files."""

import dataclasses
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chicle_elastic.errors import MissingExtraError, UsageError
from chicle_elastic.monitoring.records import IterationRecord, Transition
from chicle_elastic.monitoring.tensorboard import TensorBoardWriter

STARTED_UNIX_S = 1.7e9


def make_record(iteration: int, num_chunks: dict[str, int], **changes) -> IterationRecord:
    """A record with a figure that says which iteration it is from."""
    fields = {"figures": {"objective": 1.0 / iteration}, **changes}
    return IterationRecord(
        iteration=iteration,
        epochs=2.0 * iteration,
        time_s=0.5 * iteration,
        num_tasks=len(num_chunks),
        samples=1000,
        num_chunks=num_chunks,
        **fields,
    )


def read_back(logdir) -> EventAccumulator:
    """TensorBoard's view of a folder."""
    accumulator = EventAccumulator(str(logdir), size_guidance={"tensors": 0})  # all of them
    accumulator.Reload()
    return accumulator


def texts_shown(board) -> dict[int, str]:
    """What the Text tab shows: of a step what was written last, and nothing of later steps once they go back."""
    shown: dict[int, str] = {}
    for event in board.Tensors("events"):
        shown = {step: text for step, text in shown.items() if step < event.step}
        shown[event.step] = event.tensor_proto.string_val[0].decode()
    return shown


def write_all(logdir, records) -> EventAccumulator:
    """Write records as a job does, and read them back."""
    with TensorBoardWriter(logdir, started_unix_s=STARTED_UNIX_S) as writer:
        for record in records:
            writer.write(record)
    return read_back(logdir)


def test_what_policies_have_set_is_shown_apart(tmp_path):
    """Beside the figures of the model, from the iteration on in which it held."""
    records = [make_record(1, {}), make_record(2, {}, figures={"loss": 1.0, "parameters.learning_rate": 0.5})]
    board = write_all(tmp_path, records)
    assert [(event.step, event.value) for event in board.Scalars("parameters/learning_rate")] == [(2, 0.5)]
    assert [(event.step, event.value) for event in board.Scalars("model/loss")] == [(2, 1.0)]


def test_a_change_of_the_membership_has_its_phases(tmp_path):
    """And of a time to whole that alone, with its reason."""
    transition = Transition(
        iteration=7,
        round=2,
        members=("n0",),
        reasons=("n1 is lost",),
        detect_ms=1.0,
        ahead_ms=1.5,
        pause_ms=2.0,
        rendezvous_ms=3.0,
        move_ms=4.0,
        group_ms=5.0,
        first_ms=6.0,
        stall_ms=None,
    )
    with TensorBoardWriter(tmp_path) as writer:
        writer.write_transition(transition)
        writer.write_transition(dataclasses.replace(transition, whole_ms=250.0))
    board = read_back(tmp_path)
    phases = {tag.partition("/")[2]: board.Scalars(tag) for tag in board.Tags()["scalars"]}
    assert {name: [(event.step, event.value) for event in events] for name, events in phases.items()} == {
        name: [(7, value)]
        for name, value in zip(
            ("detect_ms", "ahead_ms", "pause_ms", "rendezvous_ms", "move_ms", "group_ms", "first_ms", "whole_ms"),
            (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 250.0),
            strict=True,
        )
    }
    assert texts_shown(board) == {7: "- n1 is lost: round 2 of n0\n- n1 is lost: all samples are back after 250 ms"}


def test_a_task_that_left_shows_zero_chunks(tmp_path):
    """Otherwise its curve would stop at what it held; closing again is fine."""
    with TensorBoardWriter(tmp_path) as writer:
        writer.close()
    board = write_all(
        tmp_path, [make_record(1, {"n0": 4}), make_record(2, {"n0": 2, "n1": 2}), make_record(3, {"n1": 4})]
    )
    assert [event.value for event in board.Scalars("chunks/n0")] == [4, 2, 0]
    assert [(event.step, event.value) for event in board.Scalars("chunks/n1")] == [(2, 2), (3, 4)]
    assert [event.value for event in board.Scalars("job/num_tasks")] == [1, 2, 1]


def test_reasons_are_shown_in_their_own_words(tmp_path):
    """In the Text tab, at the iteration that they led to."""
    reason = "n2 takes 1.8x the median time per sample; shed 3 of 12 chunks"
    board = write_all(tmp_path, [make_record(1, {"n0": 4}), make_record(2, {"n0": 4}, events=(reason, "n3 joined"))])
    (event,) = board.Tensors("events")
    assert event.step == 2
    assert event.tensor_proto.string_val[0].decode() == f"- {reason}\n- n3 joined"
    assert board.SummaryMetadata("events").plugin_data.plugin_name == "text"


def test_no_text_is_hidden_by_another_one_of_its_step(tmp_path):
    """Whoever wrote it and in whichever order; a step that goes back is written with the latest one."""
    with TensorBoardWriter(tmp_path) as writer:
        writer.add(1, {"a": 1.0}, unix_s=1.0, texts=["first", "second"])
        writer.add(1, {"a": 2.0}, unix_s=2.0, texts=["third"])
        writer.add(2, {"a": 3.0}, unix_s=3.0, texts=["fourth"])
        writer.add(1, {"a": 4.0}, unix_s=4.0, texts=["late"])
        writer.add(2, {}, unix_s=5.0, texts=["fifth"])
        writer.add(3, {}, unix_s=6.0, texts=["sixth"])
    board = read_back(tmp_path)
    assert texts_shown(board) == {
        1: "- first\n- second\n- third",
        2: "- fourth\n- late\n- fifth",
        3: "- sixth",
    }
    assert [event.step for event in board.Scalars("a")] == [1, 1, 2, 1]


def test_a_folder_that_cannot_be_made_names_the_argument(tmp_path):
    """Here a file is in the way."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"logdir='.*file/run' cannot be made \(Not a directory\)"):
        TensorBoardWriter(tmp_path / "file" / "run")


def test_writing_loads_neither_torch_nor_tensorflow(tmp_path):
    """The tensorboard package alone is enough, and fast to import."""
    program = (
        "import sys\nfrom chicle_elastic.monitoring.tensorboard import TensorBoardWriter\n"
        f"TensorBoardWriter({str(tmp_path)!r}).close()\nprint(sorted({{'torch', 'tensorflow'}} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    """And nothing is left on disk."""
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(MissingExtraError, match=r"logdir= needs .*pip install 'chicle-elastic\[tensorboard\]'"):
        TensorBoardWriter(tmp_path / "run")
    assert not list(tmp_path.iterdir())
