"""Pictures of chunks moving: what is drawn is what the history says."""

import dataclasses
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from chicle_elastic.errors import MissingExtraError, UsageError
from chicle_elastic.monitoring import swimlane, swimlane_text
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.scheduling.text import boundary_text

REASON = "task-1 joined: 8 of 16 chunks move to it"


def make_history(num_iterations: int = 40, *, join_at: int = 8, num_events: int = 1) -> History:
    """One task with 16 chunks, two from `join_at` on; the gap is known in every third iteration and halves there."""
    history = History()
    for iteration in range(1, num_iterations + 1):
        joined = iteration >= join_at
        has_event = join_at <= iteration < join_at + num_events
        history.append(
            IterationRecord(
                iteration=iteration,
                epochs=float(iteration),
                time_s=0.1 * iteration,
                num_tasks=1 + joined,
                samples=1000,
                num_chunks={"task-0": 8, "task-1": 8} if joined else {"task-0": 16},
                figures={"objective": 1.0} | ({"duality_gap": 2.0**-iteration} if iteration % 3 == 0 else {}),
                events=(REASON,) if has_event else (),
            )
        )
    return history


def rows_of(text: str) -> dict[str, str]:
    """Cells of each row by its label, without the value at the end."""
    return {line.split()[0]: line for line in text.splitlines()}


def test_lanes_are_as_high_as_their_tasks_have_chunks():
    """The heights of the drawn steps, relative to the largest number of chunks there ever was."""
    history = make_history()
    lanes = swimlane.draw(history).axes[0]
    heights = [patch.get_data() for patch in lanes.patches]
    assert len(heights) == 2
    for task, steps in zip(history.tasks, heights, strict=True):
        shares = (steps.values - steps.baseline) / swimlane.LANE_FILL
        np.testing.assert_allclose(shares, history.column(f"num_chunks.{task}") / 16)
        np.testing.assert_array_equal(steps.edges, np.arange(0.5, 41))


def test_what_is_certified_is_ringed_on_the_line_of_the_estimates():
    """The estimate is known in every iteration, the truth in some of them."""
    records = [
        dataclasses.replace(record, figures={"duality_gap_estimate": 0.9 / record.iteration, **record.figures})
        for record in make_history()
    ]
    below = swimlane.draw(History(records)).axes[1]
    estimates, certified = below.lines[:2]
    assert below.get_ylabel() == "duality gap\n(ring: certified)"
    assert len(estimates.get_xdata()) == 40
    np.testing.assert_array_equal(certified.get_xdata(), np.arange(3, 41, 3))
    np.testing.assert_allclose(certified.get_ydata(), 2.0 ** -np.arange(3, 41, 3))
    assert (certified.get_linestyle(), certified.get_fillstyle()) == ("None", "none")


def test_the_first_iteration_does_not_flatten_the_others():
    """It loads or compiles kernels, which takes seconds; of very few iterations it is as good as the others."""
    records = [
        dataclasses.replace(record, seconds=dict.fromkeys(record.num_chunks, 5.0 if record.iteration == 1 else 0.01))
        for record in make_history(10, join_at=3)
    ]
    highest_ms = [swimlane.draw(History(records[:count])).axes[1].get_ylim()[1] for count in (10, 4)]
    np.testing.assert_allclose(highest_ms, [12.5, 6250.0])


@pytest.mark.parametrize("draw", [swimlane.list_events, lambda history, width: swimlane_text.render(history)])
def test_what_a_boundary_took_is_no_news(draw):
    """The history has it; pictures have what happened and why."""
    cost = boundary_text(8, 2, total_ms=1.0, round_ms=0.5)
    records = [
        dataclasses.replace(record, events=(*record.events, cost) if record.iteration % 4 == 0 else ())
        for record in make_history()
    ]
    shown = draw(History(records), 120)
    text = shown if isinstance(shown, str) else "\n".join(shown)
    assert text.endswith(f" 1  iteration 8: {REASON}")
    assert cost not in text
    assert cost in History(records).column("events")[7]


def test_what_each_task_computed_is_drawn_where_it_is_known():
    """Smooth lines of medians in the colours of the lanes; an iteration that hung once bends none of them."""
    records = []
    for record in make_history(200):
        slow_s = 5.0 if record.iteration == 100 else 0.02
        seconds = {task: slow_s if task == "task-1" else 0.01 for task in record.num_chunks}
        records.append(dataclasses.replace(record, seconds=seconds))
    panels = swimlane.draw(History(records)).axes
    assert [axes.get_ylabel() for axes in panels] == ["chunks per task", "ms per task", "duality gap"]
    smooth = [line for line in panels[1].lines if line.get_linestyle() == "-"]
    np.testing.assert_allclose(smooth[0].get_ydata(), 10.0)
    np.testing.assert_allclose(smooth[1].get_ydata()[7:], 20.0)
    assert np.isnan(smooth[1].get_ydata()[:7]).all()


def test_a_figure_that_is_not_positive_is_drawn_on_a_plain_axis():
    """A log axis would drop the points without a word."""
    records = [
        IterationRecord(iteration=i, epochs=i, time_s=i, num_tasks=1, samples=1, figures={"margin": i - 2.0})
        for i in (1, 2, 3)
    ]
    assert swimlane.draw(History(records)).axes[1].get_yscale() == "linear"


def test_events_are_marked_at_their_boundary_and_listed_below():
    """A join before iteration 8 is a line between 7 and 8, in both halves, and its reason stands below."""
    drawing = swimlane.draw(make_history())
    for axes in drawing.axes:
        marks = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() != "-"]
        assert marks == [7.5]
    assert [text.get_text() for text in drawing.texts] == [f" 1  iteration 8: {REASON}"]


def test_a_picture_of_more_tasks_is_higher():
    """Each lane keeps its height."""
    heights_in = []
    for num_tasks in (8, 16):
        num_chunks = {f"n{task}": 4 for task in range(num_tasks)}
        record = IterationRecord(iteration=1, epochs=1, time_s=1, num_tasks=1, samples=1, num_chunks=num_chunks)
        heights_in.append(swimlane.draw(History([record])).get_figheight())
    assert heights_in[1] - heights_in[0] == pytest.approx(8 * swimlane.LANE_IN)


def test_a_picture_survives_a_pickle_and_still_shows_itself():
    """What shows the copy is the copy."""
    drawing = pickle.loads(pickle.dumps(swimlane.draw(make_history())))
    drawing.set_size_inches(2, 1)
    assert struct.unpack(">II", drawing._repr_png_()[16:24]) == (300, 150)


def test_fits_are_compared_in_one_axes():
    """Each curve in a colour of its own, with its label; the axes come back."""
    ax = Figure().subplots()
    assert make_history(20).plot(ax=ax, title="short") is ax
    make_history(40).plot(ax=ax, title="long")
    assert [line.get_label() for line in ax.lines] == ["short", "long"]
    assert [len(line.get_xdata()) for line in ax.lines] == [6, 13]
    assert ax.lines[0].get_color() != ax.lines[1].get_color()
    assert ax.get_yscale() == "log"


def test_a_history_is_drawn_into_the_panels_of_another_figure():
    """The same lanes and the same curve as in a figure of its own, with marks that no list explains and no numbers."""
    panels = Figure().subplots(2, sharex=True)
    make_history().plot(ax=panels, title="mine")
    own = swimlane.draw(make_history()).axes
    assert [axes.get_ylabel() for axes in panels] == [axes.get_ylabel() for axes in own]
    assert len(panels[0].patches) == len(own[0].patches)
    np.testing.assert_array_equal(panels[1].lines[0].get_ydata(), own[1].lines[0].get_ydata())
    assert panels[0].get_title(loc="left") == "mine"
    assert [text.get_text() for text in panels[0].texts] == ["16", "8", "8"]


@pytest.mark.parametrize("num_axes", [1, 3])
def test_too_few_or_too_many_axes_are_refused_with_the_names_of_the_panels(num_axes):
    """And with the call that makes the right ones."""
    panels = Figure().subplots(num_axes, squeeze=False)
    message = rf"{num_axes} axes .* 2 panels \(chunks per task, duality gap\).*subplots\(2,"
    with pytest.raises(UsageError, match=message):
        swimlane.draw_into(make_history(), panels)


def test_one_axes_needs_a_figure_of_the_model():
    """An empty axes would look like a fit that did nothing."""
    history = History([IterationRecord(iteration=1, epochs=1, time_s=1, num_tasks=1, samples=1)])
    with pytest.raises(UsageError, match="no figure of the model"):
        history.plot(ax=Figure().subplots())


@pytest.mark.parametrize("draw", [swimlane.draw, swimlane_text.render])
def test_the_smallest_history_can_be_drawn(draw):
    """One iteration, no chunks known, no figures."""
    draw(History([IterationRecord(iteration=1, epochs=1, time_s=1, num_tasks=1, samples=1)]))


@pytest.mark.parametrize("draw", [swimlane.draw, swimlane_text.render])
def test_an_empty_history_is_refused(draw):
    """And not drawn as empty axes."""
    with pytest.raises(UsageError, match="no iterations to draw"):
        draw(History())


def test_an_unknown_column_is_refused_by_name():
    """With the names there are."""
    with pytest.raises(UsageError, match=r"no column 'gap'; it has .*duality_gap"):
        make_history().column("gap")


@pytest.mark.parametrize(
    ("names", "picked"),
    [
        (["objective", "duality_gap"], "duality_gap"),
        (["accuracy", "loss"], "loss"),
        (["margin", "accuracy"], "margin"),
        ([], None),
    ],
)
def test_the_most_telling_figure_is_picked(names, picked):
    """A gap before a loss before whatever comes first."""
    figures = dict.fromkeys(names, 1.0)
    record = IterationRecord(iteration=1, epochs=1, time_s=1, num_tasks=1, samples=1, figures=figures)
    assert swimlane.pick_figure(History([record])) == picked


def test_the_terminal_shows_lanes_figure_and_events():
    """Three characters per iteration here: 16 chunks are a full block, 8 half a block, none is blank."""
    rows = rows_of(make_history(20).to_text(width=3 * 20 + 11 + 9 + 2))
    assert rows["task-0"] == "     task-0 " + "█" * 21 + "▄" * 39 + " 8"
    assert rows["task-1"] == "     task-1 " + " " * 21 + "▄" * 39 + " 8"
    assert rows["events"] == "     events " + " " * 21 + "1"
    assert rows["1"] == f" 1  iteration 8: {REASON}"
    assert rows["duality_gap"].endswith(" 3.8e-06")
    cells = rows["duality_gap"][12:-8]
    assert cells.startswith("      █")  # not known before iteration 3
    assert cells.rstrip().endswith("▂▁▁▁▁▁▁▁▁▁")  # known last in iteration 18 of 20
    assert sorted(cells.strip(), key=swimlane_text.BLOCKS.index, reverse=True) == list(cells.strip())


@pytest.mark.parametrize("num_iterations", [1, 7, 39, 80, 81, 1000])
@pytest.mark.parametrize("width", [40, 72, 100, 250])
def test_no_line_is_wider_than_the_terminal_or_100_columns(num_iterations, width):
    """Whatever the length of the job; a picture of 1000 iterations is squeezed, one of 7 is stretched."""
    text = make_history(num_iterations, num_events=30).to_text(width=width)
    assert max(map(len, text.splitlines())) <= min(width, 100)


def test_a_squeezed_lane_shows_means():
    """400 iterations in about 30 characters: the join at iteration 201 is in the middle."""
    rows = rows_of(swimlane_text.render(make_history(400, join_at=201), width=52))
    lane = rows["task-0"].split()[1]
    assert lane[: len(lane) // 2 - 1] == "█" * (len(lane) // 2 - 1)
    assert lane[-(len(lane) // 2) :] == "▄" * (len(lane) // 2)


@pytest.mark.parametrize("num_events", [10, 11, 30])
def test_only_the_first_events_are_listed_and_the_others_counted(num_events):
    """A policy that acts in every iteration must not fill the screen."""
    text = swimlane_text.render(make_history(num_events=num_events))
    assert text.count(REASON) == 10
    assert (f"{num_events - 10} more in history.column('events')" in text) == (num_events > 10)


def test_long_names_keep_both_ends():
    """Names of nodes differ at their ends."""
    assert swimlane.clip("gpu-cluster-a-node-0123", 16) == "gpu-clus…de-0123"
    assert swimlane.clip("n0", 16) == "n0"


def test_a_terminal_that_is_too_narrow_is_refused():
    """With the least width."""
    with pytest.raises(UsageError, match=r"width=20 columns are too few .* at least 40"):
        swimlane_text.render(make_history(), width=20)


def test_without_matplotlib_the_extra_is_named_and_the_terminal_still_works():
    """In a process of its own, where matplotlib cannot be imported."""
    program = (
        "import sys; sys.modules['matplotlib'] = None; sys.modules['matplotlib.figure'] = None\n"
        "from chicle_elastic.monitoring import swimlane, swimlane_text\n"
        "from chicle_elastic.monitoring.history import History\n"
        "from chicle_elastic.monitoring.records import IterationRecord\n"
        "history = History([IterationRecord(iteration=1, epochs=1, time_s=1, num_tasks=1, samples=1)])\n"
        "swimlane_text.render(history)\n"
        "swimlane.draw(history)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1].startswith(
        f"{MissingExtraError.__module__}.MissingExtraError: drawing a history"
    )
    assert "pip install 'chicle-elastic[plot]'" in run.stderr
