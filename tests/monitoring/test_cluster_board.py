"""What TensorBoard's own reader finds of a cluster's job, whoever has written it."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring import cluster_board, pictures
from chicle_elastic.monitoring.cluster_board import BOARD_FOLDER, ClusterBoard
from tests.monitoring.test_board import texts_shown
from tests.timeouts import timeout_s

STARTED_UNIX_S = 1.7e9


def iteration(number: int, chunks: dict[str, int], **figures: float) -> dict[str, Any]:
    """A line as agents write it: iterations of half a second."""
    return {
        "kind": "iteration",
        "time": STARTED_UNIX_S + 0.5 * number,
        "iteration": number,
        "epochs": float(number),
        "figures": figures,
        "seconds": dict.fromkeys(chunks, 0.25),
        "samples": {node: 10 * count for node, count in chunks.items()},
        "chunks": chunks,
    }


def joined_round(number: int, *members: str) -> dict[str, Any]:
    """A line as agents write it."""
    return {"kind": "round", "time": STARTED_UNIX_S, "round": number, "members": members, "has_losses": False}


def transition(**changes: Any) -> dict[str, Any]:
    """A line as agents write it."""
    phases: dict[str, Any] = {
        "detect_ms": 0.0,
        "ahead_ms": 0.0,
        "pause_ms": 1.0,
        "rendezvous_ms": 2.0,
        "move_ms": 3.0,
        "group_ms": 4.0,
        "first_ms": 5.0,
        "stall_ms": 6.0,
        "whole_ms": None,
    }
    fields = {"time": STARTED_UNIX_S, "round": 2, "iteration": 1, "members": ["n0", "n1"], "reasons": ["n1 joins"]}
    return {"kind": "transition", **fields, **phases, **changes}


def write_all(log_dir: Path, node: str, *lines: dict[str, Any]) -> None:
    """What the agent of a node does, in a process and at a second of its own.

    TensorBoard reads files in the order of their names. Those of one process and second end with a number, and the
    tenth comes before the ninth.
    """
    before = set(log_dir.rglob("*tfevents*"))
    with ClusterBoard(log_dir, NodeId(node)) as board:
        for line in lines:
            board.write(line)
    for path in set(log_dir.rglob("*tfevents*")) - before:
        path.rename(path.with_name(f"events.out.tfevents.{1_700_000_000 + len(before)}.{node}"))


def read_back(log_dir: Path) -> EventAccumulator:
    """TensorBoard's view."""
    accumulator = EventAccumulator(str(log_dir / BOARD_FOLDER))
    accumulator.Reload()
    return accumulator


def test_an_iteration_is_figures_members_seconds_and_chunks(tmp_path: Path) -> None:
    """Each under a tag of its own; a member without chunks is a member, and no task of the iteration."""
    write_all(
        tmp_path,
        "n0",
        joined_round(1, "n0", "n1"),
        iteration(1, {"n0": 4}, objective=1.0),
        iteration(2, {"n0": 4}, objective=0.5, duality_gap=0.1),
    )
    board = read_back(tmp_path)
    assert [(event.step, event.value) for event in board.Scalars("model/objective")] == [(1, 1.0), (2, 0.5)]
    assert [event.step for event in board.Scalars("model/duality_gap")] == [2]
    assert [event.value for event in board.Scalars("job/members")] == [2, 2]
    assert [event.value for event in board.Scalars("job/num_tasks")] == [1, 1]
    assert [event.value for event in board.Scalars("job/samples")] == [40, 40]
    assert [event.value for event in board.Scalars("job/iteration_s")] == [0.5]
    assert [event.value for event in board.Scalars("seconds/n0")] == [0.25, 0.25]
    assert [event.wall_time for event in board.Scalars("chunks/n0")] == [STARTED_UNIX_S + 0.5, STARTED_UNIX_S + 1.0]


def test_a_change_of_the_membership_is_shown_with_its_phases_and_its_reason(tmp_path: Path) -> None:
    """At the iteration that it came after."""
    lines = (joined_round(1, "n0"), iteration(7, {"n0": 4}), {"kind": "log", "text": "why", "time": 0.0})
    write_all(tmp_path, "n0", *lines, transition(), iteration(8, {"n0": 2, "n1": 2}))
    board = read_back(tmp_path)
    phases = ("pause", "rendezvous", "move", "group", "first", "stall")
    found = [(event.step, event.value) for phase in phases for event in board.Scalars(f"transition/{phase}_ms")]
    assert found == [(7, 1.0), (7, 2.0), (7, 3.0), (7, 4.0), (7, 5.0), (7, 6.0)]
    texts = [(event.step, event.tensor_proto.string_val[0].decode()) for event in board.Tensors("events")]
    assert texts == [(7, "- n1 joins: round 2 of n0, n1, stalled for 6 ms"), (8, "- why")]


def test_who_goes_on_as_the_writer_does_not_hide_what_the_last_one_wrote(tmp_path: Path) -> None:
    """In another file of the same run, at the same iteration."""
    before = (joined_round(1, "n0", "n1"), iteration(7, {"n0": 4}), transition(round=2))
    write_all(tmp_path, "n0", *before)
    write_all(
        tmp_path, "n1", *before, joined_round(3, "n1"), transition(round=3, members=["n1"], reasons=["n0 is lost"])
    )
    [text] = texts_shown(read_back(tmp_path)).values()
    assert text == "- n1 joins: round 2 of n0, n1, stalled for 6 ms\n- n0 is lost: round 3 of n1, stalled for 6 ms"


def test_the_first_round_has_no_stall(tmp_path: Path) -> None:
    """Nobody waited: there is no iteration before it."""
    write_all(tmp_path, "n0", joined_round(1, "n0"), transition(stall_ms=None, reasons=["n1 joins"]))
    board = read_back(tmp_path)
    assert "transition/stall_ms" not in board.Tags()["scalars"]
    assert board.Tensors("events")[0].tensor_proto.string_val[0] == b"- the job began with n0, n1"


def test_the_next_member_goes_on_when_the_first_one_is_gone(tmp_path: Path) -> None:
    """It knows whom it saw before: the curve of the one that is gone ends at 0."""
    before = (joined_round(1, "n0", "n1"), iteration(1, {"n0": 2, "n1": 2}))
    after = (joined_round(2, "n1", "n2"), iteration(2, {"n1": 3, "n2": 1}))
    write_all(tmp_path, "n0", *before)
    write_all(tmp_path, "n1", *before, *after)
    write_all(tmp_path, "n2", *after)
    board = read_back(tmp_path)
    assert [(event.step, event.value) for event in board.Scalars("chunks/n0")] == [(1, 2), (2, 0)]
    assert [(event.step, event.value) for event in board.Scalars("chunks/n1")] == [(1, 2), (2, 3)]
    assert [event.value for event in board.Scalars("job/iteration_s")] == [0.5]


def test_a_first_member_that_is_one_no_more_stops_writing(tmp_path: Path) -> None:
    """It was taken for lost, say, and has joined again behind others."""
    lines = (joined_round(1, "n0"), iteration(1, {"n0": 4}), joined_round(2, "n1", "n0"), iteration(2, {"n1": 4}))
    write_all(tmp_path, "n0", *lines)
    assert [event.step for event in read_back(tmp_path).Scalars("job/epochs")] == [1]


def test_without_a_log_folder_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a thread nor a file."""
    monkeypatch.chdir(tmp_path)
    with ClusterBoard(None, NodeId("n0")) as board:
        board.write(joined_round(1, "n0"))
        board.write(iteration(1, {"n0": 4}))
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_a_warning_and_no_end_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the extra, once."""
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    write_all(tmp_path, "n0", joined_round(1, "n0"), iteration(1, {"n0": 4}))
    [record] = caplog.records
    assert "pip install 'chicle-elastic[tensorboard]'" in record.getMessage()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Here a file is in the way."""
    (tmp_path / BOARD_FOLDER).touch()
    write_all(tmp_path, "n0", joined_round(1, "n0"), iteration(1, {"n0": 4}))
    assert "cannot be made" in caplog.records[0].getMessage()


def test_a_disk_that_hangs_holds_no_agent_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`write` and `close` return while the thread can write nothing; the log has the number of lines that are lost."""
    may_go_on = threading.Event()
    monkeypatch.setattr(cluster_board, "require_tensorboard", may_go_on.wait)
    monkeypatch.setattr(cluster_board, "MAX_LINES", 10)
    monkeypatch.setattr(cluster_board, "CLOSE_S", 0.01)
    board = ClusterBoard(tmp_path, NodeId("n0"))
    thread = board._thread
    assert thread is not None
    for number in range(15):
        board.write(iteration(number, {"n0": 1}))
    board.close()
    assert "15 lines of this agent are not there" in caplog.text
    may_go_on.set()
    board._lines.put(None)
    thread.join(timeout_s(30))
    assert not thread.is_alive()


def test_a_long_job_has_pictures_bytes_and_the_options_of_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pictures are drawn by another process, at the end of a job of more than ten seconds."""
    monkeypatch.setattr(pictures, "CHILD_S", timeout_s(600))
    monkeypatch.setattr(cluster_board, "CLOSE_S", timeout_s(1200))
    lines = [{**iteration(number, {"n0": 2, "n1": 2}), "moved_bytes": 100, "hidden_bytes": 80} for number in range(30)]
    with ClusterBoard(tmp_path, NodeId("n0"), command=("-m", "estimators.fit_task", "--C", "0.1")) as board:
        for line in (joined_round(1, "n0", "n1"), *lines):
            board.write(line)
    shown = read_back(tmp_path)
    assert sorted(shown.Tags()["images"]) == ["pictures/chunk_map", "pictures/swimlanes"]
    assert [image.step for image in shown.Images("pictures/swimlanes")] == [29]
    assert {event.value for event in shown.Scalars("bytes/moved")} == {100.0}
    assert {event.value for event in shown.Scalars("bytes/hidden")} == {80.0}
    assert "_hparams_/session_start_info" in shown.PluginTagToContent("hparams")


def test_a_short_job_waits_for_no_picture(tmp_path: Path) -> None:
    """Its history has one."""
    write_all(tmp_path, "n0", joined_round(1, "n0"), iteration(1, {"n0": 4}), iteration(2, {"n0": 4}))
    assert read_back(tmp_path).Tags()["images"] == []
