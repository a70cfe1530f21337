"""What TensorBoard's own readers find of a whole run: curves, pictures, texts, layout, hyper-parameters."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from chicle_elastic.errors import MissingExtraError, UsageError
from chicle_elastic.monitoring import board_pages, pictures
from chicle_elastic.monitoring.board_pages import PAGE_LINES, Journal
from chicle_elastic.monitoring.board_values import LAYOUT, plain_parameters
from chicle_elastic.monitoring.chunk_map import SLOW, draw_map
from chicle_elastic.monitoring.cluster_board import options_of
from chicle_elastic.monitoring.node_curves import MAX_CURVES
from chicle_elastic.monitoring.pictures import PictureBook, draw_in_child, draw_pictures
from chicle_elastic.monitoring.records import IterationRecord, RecordTable
from chicle_elastic.monitoring.tensorboard import TensorBoardWriter
from chicle_elastic.scheduling.text import boundary_ms_of, boundary_text
from tests.monitoring.test_records import make_transition
from tests.timeouts import timeout_s

STARTED_UNIX_S = 1.7e9
PNG = b"\x89PNG"


def make_record(iteration: int, nodes: list[str], **changes: Any) -> IterationRecord:
    """An iteration of a second, in which the last node takes twice as long as the others."""
    seconds = {node: 1.0 if node == nodes[-1] else 0.5 for node in nodes}
    fields: dict[str, Any] = {"figures": {"objective": 1.0 / iteration, "duality_gap": 0.5 / iteration}, **changes}
    return IterationRecord(
        iteration=iteration,
        epochs=float(iteration),
        time_s=float(iteration),
        num_tasks=len(nodes),
        samples=1000,
        num_chunks=dict.fromkeys(nodes, 4),
        seconds=seconds,
        **fields,
    )


def names(count: int) -> list[str]:
    """Nodes."""
    return [f"n{number}" for number in range(count)]


def written(folder: Path, records: list[IterationRecord], **options: Any) -> EventAccumulator:
    """Write records as a job does, and read them back."""
    with TensorBoardWriter(folder, started_unix_s=STARTED_UNIX_S, **options) as writer:
        for record in records:
            writer.write(record)
    return read_back(folder)


def read_back(folder: Path) -> EventAccumulator:
    """All of it."""
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0, "images": 0})
    accumulator.Reload()
    return accumulator


def text_of(event: Any) -> str:
    """The words of a text."""
    found: str = event.tensor_proto.string_val[0].decode()
    return found


def texts_shown(board: EventAccumulator) -> dict[int, str]:
    """What the Text tab shows: of a step what was written last, and nothing of later steps once they go back."""
    shown: dict[int, str] = {}
    for event in board.Tensors("events"):
        shown = {step: text for step, text in shown.items() if step < event.step}
        shown[event.step] = text_of(event)
    return shown


def test_a_curve_ends_when_its_node_leaves(tmp_path: Path) -> None:
    """At no chunks, once; what it computed ends with what it computed. A node that comes back goes on."""
    rounds = [["n0", "n1"], ["n0"], ["n0"], ["n0", "n1"]]
    board = written(tmp_path, [make_record(number, nodes) for number, nodes in enumerate(rounds, 1)])
    assert [(event.step, event.value) for event in board.Scalars("chunks/n1")] == [(1, 4), (2, 0), (4, 4)]
    assert [(event.step, event.value) for event in board.Scalars("seconds/n1")] == [(1, 1.0), (4, 1.0)]
    assert [event.value for event in board.Scalars("job/num_tasks")] == [2, 1, 1, 2]
    assert text_of(board.Tensors("members")[-1]).splitlines()[2:] == [
        "| node | from iteration | to iteration |",
        "| --- | --- | --- |",
        "| n0 | 1 | is here |",
        "| n1 | 1 | 1 |",
        "| n1 | 4 | is here |",
    ]


def test_curves_end_where_nodes_become_too_many(tmp_path: Path) -> None:
    """And are there again when they are few."""
    counts = [MAX_CURVES, MAX_CURVES + 1, MAX_CURVES]
    board = written(tmp_path, [make_record(number, names(count)) for number, count in enumerate(counts, 1)])
    assert [event.step for event in board.Scalars("seconds/n0")] == [1, 3]
    assert [event.step for event in board.Scalars("nodes/seconds_max")] == [1, 2, 3]


def test_gaps_have_an_exponent(tmp_path: Path) -> None:
    """Which is there where the gap is above zero."""
    records = [make_record(number, ["n0"], figures={"duality_gap": gap}) for number, gap in enumerate((1e-3, 0.0), 1)]
    events = written(tmp_path, records).Scalars("log10/duality_gap")
    assert [(event.step, round(event.value, 5)) for event in events] == [(1, -3.0)]


def test_samples_are_an_axis_of_their_own(tmp_path: Path) -> None:
    """Steps of `model_by_samples` are the samples so far; the wall time of each event is that of its iteration."""
    board = written(tmp_path, [make_record(number, ["n0"]) for number in (1, 2, 4)])
    events = board.Scalars("model_by_samples/duality_gap")
    assert [(event.step, event.value) for event in events] == [(1000, 0.5), (2000, 0.25), (4000, 0.125)]
    assert [event.wall_time - STARTED_UNIX_S for event in events] == [1.0, 2.0, 4.0]
    assert [event.value for event in board.Scalars("job/time_s")] == [1.0, 2.0, 4.0]


def test_an_agent_that_joined_late_knows_the_samples_from_its_second_iteration_on() -> None:
    """Epochs count from the beginning of the job; the first one that it sees says nothing of the data set."""
    pages = board_pages.RunPages()
    found = [pages.iteration(make_record(number, ["n0"]), unix_s=float(number)) for number in (7, 8)]
    assert [(page.num_samples, bool(page.by_samples)) for page in found] == [(0, False), (8000, True)]


def test_all_nodes_are_in_one_chart(tmp_path: Path) -> None:
    """The layout of Custom Scalars has the charts of which there are curves, and no other."""
    board = written(tmp_path, [make_record(1, ["n0", "n1"])])
    layout = layout_pb2.Layout.FromString(board.Tensors("custom_scalars__config__")[-1].tensor_proto.string_val[0])
    charts = {chart.title: chart for category in layout.category for chart in category.chart}
    assert list(charts["seconds of each node"].multiline.tag) == ["seconds/.+$"]
    [series] = charts["seconds: slowest, median and fastest node"].margin.series
    assert (series.value, series.lower, series.upper) == (
        "nodes/seconds_median",
        "nodes/seconds_min",
        "nodes/seconds_max",
    )
    assert "validation score" not in charts
    assert [category.title for category in layout.category] == list(LAYOUT)


def test_a_chart_comes_with_its_first_curve(tmp_path: Path) -> None:
    """A change of the membership after the first iterations."""
    with TensorBoardWriter(tmp_path, started_unix_s=STARTED_UNIX_S) as writer:
        writer.write(make_record(1, ["n0"]))
        writer.write_transition(make_transition())
    board = read_back(tmp_path)
    layouts = [
        layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
        for event in board.Tensors("custom_scalars__config__")
    ]
    title = "phases of changes of the membership, ms"
    found = [title in {chart.title for category in one.category for chart in category.chart} for one in layouts]
    assert found[0] is False
    assert found[-1] is True


def test_hyper_parameters_have_their_result(tmp_path: Path) -> None:
    """The columns are the parameters and the figures, whose last values TensorBoard shows."""
    params = {"C": 0.1, "loss": "hinge", "shuffle": True, "class_weight": None}
    board = written(tmp_path / "run", [make_record(1, ["n0"])], hyper_parameters=params)
    found = {
        tag: plugin_data_pb2.HParamsPluginData.FromString(content)
        for tag, content in board.PluginTagToContent("hparams").items()
    }
    begun = found["_hparams_/session_start_info"].session_start_info
    assert begun.group_name == "run"
    assert begun.hparams["C"].number_value == 0.1
    assert begun.hparams["loss"].string_value == "hinge"
    assert begun.hparams["shuffle"].bool_value is True
    assert "class_weight" not in begun.hparams
    experiment = found["_hparams_/experiment"].experiment
    assert [info.name for info in experiment.hparam_infos] == ["C", "loss", "shuffle"]
    results = [info.name.tag for info in experiment.metric_infos]
    assert results == ["model/duality_gap", "model/objective", "job/epochs", "job/time_s"]
    assert set(results) <= set(board.Tags()["scalars"])
    assert found["_hparams_/session_end_info"].session_end_info.end_time_secs == STARTED_UNIX_S + 1.0


def test_other_parameters_are_words() -> None:
    """A class by its name, what cannot be a number as it prints."""
    assert plain_parameters({"module": dict, "shape": (1, 2), "n": 3}) == {
        "module": "dict",
        "shape": "(1, 2)",
        "n": 3.0,
    }


def test_options_of_a_command_are_hyper_parameters() -> None:
    """As `python -m estimators.fit_task` takes them."""
    command = ["-u", "-m", "estimators.fit_task", "--estimator", "svm", "--C=0.1", "--tol", "1e-3", "--early_stopping"]
    assert options_of(command) == {"estimator": "svm", "C": 0.1, "tol": 1e-3, "early_stopping": True}


def test_no_text_of_a_long_run_is_lost(tmp_path: Path) -> None:
    """TensorBoard draws some steps of a tag; the pages of the journal have all lines, each page as it was last."""
    lines = [f"reason | {number}" for number in range(3 * PAGE_LINES + 7)]
    records = [make_record(number, ["n0"], events=(line,)) for number, line in enumerate(lines, 1)]
    written(tmp_path, records)
    board = EventAccumulator(str(tmp_path), size_guidance={"tensors": 10})
    board.Reload()
    pages = sorted(tag for tag in board.Tags()["tensors"] if tag.startswith("journal/"))
    assert pages == [f"journal/page_{number:03d}" for number in range(1, 5)]
    shown = [line for tag in pages for line in text_of(board.Tensors(tag)[-1]).splitlines()[2:]]
    assert shown == [f"| {number} | reason \\| {number - 1} |" for number in range(1, len(lines) + 1)]


def test_durations_of_boundaries_are_scalars_and_not_in_the_journal(tmp_path: Path) -> None:
    """There is one before every iteration."""
    line = boundary_text(3, 2, total_ms=12.5, round_ms=3.0)
    assert boundary_ms_of(line) == 12.5
    assert boundary_ms_of("n1 joins") is None
    board = written(tmp_path, [make_record(3, ["n0"], events=(line, "n1 joins"))])
    assert [event.value for event in board.Scalars("job/boundary_ms")] == [12.5]
    assert texts_shown(board) == {3: "- n1 joins"}
    assert board.SummaryMetadata("events").plugin_data.plugin_name == "text"
    assert text_of(board.Tensors("journal/page_001")[-1]).splitlines()[2:] == ["| 3 | n1 joins |"]


def test_a_page_is_written_now_and_then_and_at_the_end() -> None:
    """It is written whole, so not with each line."""
    journal = Journal()
    found = []
    for number in range(5):
        journal.add(number, [str(number)])
        found.append(len(journal.pages(unix_s=float(number))))
    assert found == [1, 0, 1, 0, 1]
    journal.add(5, ["last"])
    [page] = journal.pages(5.0, is_last=True)
    assert page[1] == 5
    assert page[2].splitlines()[-1] == "| 5 | last |"
    assert journal.pages(6.0, is_last=True) == []


def test_a_run_that_fails_loses_no_text(tmp_path: Path) -> None:
    """Its parameters have no result, and there is no picture to wait for."""

    def fail() -> None:
        with TensorBoardWriter(tmp_path, started_unix_s=STARTED_UNIX_S, hyper_parameters={"C": 1.0}) as writer:
            for number in (1, 2):
                writer.write(make_record(number, ["n0"], events=(f"reason {number}",)))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    board = read_back(tmp_path)
    assert text_of(board.Tensors("journal/page_001")[-1]).splitlines()[2:] == ["| 1 | reason 1 |", "| 2 | reason 2 |"]
    assert sorted(board.PluginTagToContent("hparams")) == ["_hparams_/session_start_info"]
    assert board.Tags()["images"] == []


def test_the_next_writer_repeats_all_pages() -> None:
    """The one before was killed, perhaps before its texts were on disk."""
    journal = Journal()
    journal.add(1, [str(number) for number in range(PAGE_LINES + 1)])
    first = journal.pages(0.0)
    assert [tag for tag, _, _ in first] == ["journal/page_001", "journal/page_002"]
    assert journal.pages(1.0) == []
    journal.repeat()
    assert journal.pages(1.0) == first


@pytest.mark.parametrize(("count", "tags"), [(1, ["swimlanes"]), (4, ["chunk_map", "swimlanes"]), (64, ["chunk_map"])])
def test_pictures_are_there_at_the_end(tmp_path: Path, count: int, tags: list[str]) -> None:
    """Lanes of a few nodes, a map of many, each of which is a picture."""
    board = written(tmp_path, [make_record(number, names(count)) for number in (1, 2, 3)])
    assert sorted(board.Tags()["images"]) == [f"pictures/{tag}" for tag in tags]
    for tag in tags:
        [image] = board.Images(f"pictures/{tag}")
        assert image.encoded_image_string.startswith(PNG)
        assert image.step == 3


def test_pictures_come_at_intervals(tmp_path: Path) -> None:
    """Of a long run, by the time of its iterations; the last one at its end."""
    drawn: list[int] = []

    def draw(records: Any) -> dict[str, bytes]:
        drawn.append(records[-1].iteration)
        return {"pictures/swimlanes": PNG}

    records = [make_record(number, ["n0"]) for number in range(1, 95)]
    board = written(tmp_path, records, draw=draw)
    assert drawn == [31, 61, 91, 94]
    assert [image.step for image in board.Images("pictures/swimlanes")] == drawn


def test_the_longer_a_run_the_rarer_its_pictures() -> None:
    """A tenth of the time so far; and a picture that takes long is drawn less often."""
    book = PictureBook()
    book.add(make_record(1, ["n0"]), 0.0)
    book.drawn(1000.0, duration_s=0.1)
    assert [book.is_due(now) for now in (1099.0, 1100.0)] == [False, True]
    book.drawn(1000.0, duration_s=10.0)
    assert [book.is_due(now) for now in (1499.0, 1500.0)] == [False, True]


def test_what_is_drawn_of_a_long_run_is_bounded_and_tells_all_that_happened() -> None:
    """Records that are thinned out leave their events and certificates to the next one."""
    book = PictureBook()
    for number in range(1, 5001):
        events = (f"event {number}",) if number % 1000 == 3 else ()
        book.add(make_record(number, ["n0"], events=events), float(number))
    assert len(book.records) <= pictures.MAX_RECORDS
    assert [event for record in book.records for event in record.events] == [
        f"event {number}" for number in (3, 1003, 2003, 3003, 4003)
    ]
    steps = [record.iteration for record in book.records]
    assert all(before < after for before, after in itertools.pairwise(steps))
    assert steps[-1] == 5000


def test_another_process_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As agents have it."""
    monkeypatch.setattr(pictures, "CHILD_S", timeout_s(600))
    records = [make_record(number, ["n0", "n1"], events=("n1 joins",)) for number in (1, 2)]
    assert (
        draw_in_child(records).keys() == draw_pictures(records).keys() == {"pictures/swimlanes", "pictures/chunk_map"}
    )


def test_a_process_that_cannot_draw_is_no_error() -> None:
    """Here there is nothing to draw."""
    assert draw_in_child([]) == {}


def test_without_matplotlib_everything_but_the_pictures_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is optional."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    board = written(tmp_path, [make_record(1, ["n0"])])
    assert board.Tags()["images"] == []
    assert "model/objective" in board.Tags()["scalars"]


def test_the_map_names_the_nodes_that_were_slow() -> None:
    """Red, and in words; a node that was away has no colour."""
    records = [make_record(number, names(64)) for number in (1, 2)] + [make_record(3, names(63))]
    drawing = draw_map(RecordTable(records), title="a run")
    assert [text.get_text() for text in drawing.texts if text.get_text().startswith("slow")] == ["slow: n63"]
    labels = {label.get_text(): label.get_color() for label in drawing.axes[0].get_yticklabels()}
    assert [name for name, color in labels.items() if color == SLOW] == ["n63"]
    assert len(labels) == 64


def test_a_change_names_a_few_members_and_counts_many() -> None:
    """Who they are is in the table of members."""
    assert make_transition().words() == "n1 leaves: round 2 of n0, stalled for 7 ms"
    assert make_transition(members=names(64)).words() == "n1 leaves: round 2 of 64 nodes, stalled for 7 ms"


def test_what_policies_have_set_is_shown_apart(tmp_path: Path) -> None:
    """Beside the figures of the model, from the iteration on in which it held."""
    figures = ({"loss": 2.0}, {"loss": 1.0, "parameters.learning_rate": 0.5})
    board = written(tmp_path, [make_record(number, [], figures=found) for number, found in enumerate(figures, 1)])
    assert [(event.step, event.value) for event in board.Scalars("parameters/learning_rate")] == [(2, 0.5)]
    assert [(event.step, event.value) for event in board.Scalars("model/loss")] == [(1, 2.0), (2, 1.0)]


def test_a_change_of_the_membership_has_its_phases(tmp_path: Path) -> None:
    """And of a time to whole that alone, with its reason."""
    with TensorBoardWriter(tmp_path) as writer:
        writer.write_transition(make_transition())
        writer.write_transition(make_transition(whole_ms=250.0))
    board = read_back(tmp_path)
    found = {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
    phases = ("detect", "ahead", "pause", "rendezvous", "move", "group", "first", "stall", "whole")
    times_ms = (0.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 250.0)
    assert found == {f"transition/{phase}_ms": [(1, ms)] for phase, ms in zip(phases, times_ms, strict=True)}
    lines = "- n1 leaves: round 2 of n0, stalled for 7 ms\n- n1 leaves: all samples are back after 250 ms"
    assert texts_shown(board) == {1: lines}


def test_no_text_is_hidden_by_another_one_of_its_step(tmp_path: Path) -> None:
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


def test_a_folder_that_cannot_be_made_names_the_argument(tmp_path: Path) -> None:
    """Here a file is in the way."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"logdir='.*file/run' cannot be made \(Not a directory\)"):
        TensorBoardWriter(tmp_path / "file" / "run")


def test_writing_loads_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    """The tensorboard package alone is enough, and fast to import."""
    program = (
        "import sys\nfrom chicle_elastic.monitoring.tensorboard import TensorBoardWriter\n"
        f"TensorBoardWriter({str(tmp_path)!r}).close()\nprint(sorted({{'torch', 'tensorflow'}} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is left on disk."""
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(MissingExtraError, match=r"logdir= needs .*pip install 'chicle-elastic\[tensorboard\]'"):
        TensorBoardWriter(tmp_path / "run")
    assert not list(tmp_path.iterdir())
