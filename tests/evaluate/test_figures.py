"""Projected time against cases of the paper that were computed by hand, and a quick evaluation that goes on."""

import dataclasses
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from chicle_elastic.chunks.views import StateSpec
from chicle_elastic.evaluate import balance, fig7, fig8, images, lanes, projection
from chicle_elastic.evaluate.bars import Row
from chicle_elastic.evaluate.image_data import ImageData
from chicle_elastic.evaluate.micro import growth_row
from chicle_elastic.evaluate.pictures import draw
from chicle_elastic.evaluate.projection import Ramp
from chicle_elastic.evaluate.runs import Problem, Settings, gaps
from chicle_elastic.evaluate.shapes import click_data
from chicle_elastic.monitoring.records import IterationRecord, RecordTable
from tests.house.sources import ROOT
from tests.programs import run_python
from tests.timeouts import timeout_s

ANY_STATE = StateSpec(outputs=1, width=1, dtype="float64")
CHUNKS = {"n0": 2, "n1": 2}


@pytest.mark.parametrize(
    ("tasks", "nodes", "units"),
    [(16, 16, 1.0), (32, 14, 1.5), (32, 16, 1.0), (24, 16, 4 / 3), (64, 2, 8.0), (16, 2, 8.0)],
)
def test_an_iteration_of_micro_tasks(tasks: int, nodes: int, units: float) -> None:
    """32 tasks on 14 nodes: three turns of half a unit each."""
    assert projection.micro_units(tasks, nodes) == pytest.approx(units)


@pytest.mark.parametrize(("nodes", "units"), [(16, 1.0), (8, 2.0), (14, 16 / 14), (2, 8.0)])
def test_an_iteration_of_uni_tasks(nodes: int, units: float) -> None:
    """No node waits for another one."""
    assert projection.uni_units(nodes) == pytest.approx(units)


def test_sixteen_tasks_come_to_a_gap_on_clicks(tmp_path: Path) -> None:
    """The steps of CoCoA are as short as the longest row wants: raw counts would end none of these runs."""
    settings = Settings(seeds=(0,), is_quick=True, cache=tmp_path, rows=(click_data(5000),))
    problem = Problem(data=settings.rows[0], gaps=(1e-2,), most=60)
    [few], [many] = (gaps(settings, problem, num_tasks=tasks) for tasks in (16, 32))
    assert len(few) < len(many) < problem.most


def test_runs_of_seeds_that_are_made_side_by_side_give_the_same(tmp_path: Path) -> None:
    """Give what one after the other gives, to the bit."""
    settings = Settings(seeds=(0, 1), is_quick=True, cache=tmp_path / "both", rows=(click_data(1000),))
    problem = Problem(data=settings.rows[0], gaps=(1e-1,), most=60)
    alone = [
        gaps(dataclasses.replace(settings, seeds=(seed,), cache=tmp_path / "alone"), problem, num_tasks=4)[0]
        for seed in settings.seeds
    ]
    assert gaps(settings, problem, num_tasks=4) == alone
    kept, again = ({path.name: path.read_text() for path in (tmp_path / of).iterdir()} for of in ("both", "alone"))
    assert kept == again


def test_local_sgd_takes_turns_and_no_larger_share() -> None:
    """32 tasks on 16 nodes take 2 units for twice the samples; 8 uni-tasks need twice the iterations."""
    assert projection.micro_units_of_local_sgd(32, 16) == 2.0
    assert projection.micro_units_of_local_sgd(16, 14) == 2.0
    assert projection.uni_iterations_of_local_sgd(8) == 2.0


@pytest.mark.parametrize(("tasks", "units"), [(16, 1.5), (24, 4 / 3), (32, 1.5), (64, 1.25)])
def test_slow_and_fast_nodes(tasks: int, units: float) -> None:
    """The paper's 1.5, 1.33, 1.5 and 1.25; uni-tasks 1.2."""
    assert projection.micro_units_of_mixed_nodes(tasks, 1.5) == pytest.approx(units)
    assert projection.uni_units_of_mixed_nodes(1.5) == pytest.approx(1.2)


def test_tasks_that_cannot_be_dealt_evenly() -> None:
    """An error says so."""
    with pytest.raises(ValueError, match="multiple of 8"):
        projection.micro_units_of_mixed_nodes(20, 1.5)


def test_nodes_come_and_go_between_iterations() -> None:
    """From 16 to 12 nodes, two every 3 units, by uni-tasks and by 32 micro-tasks."""
    ramp = Ramp(16, 12, every=3.0)
    assert [ramp.nodes(time) for time in (0.0, 2.99, 3.0, 5.9, 6.0, 99.0)] == [16, 16, 14, 14, 12, 12]
    ends = projection.ends(ramp, projection.uni_units, 7)
    expected = [1, 2, 3, 3 + 16 / 14, 3 + 32 / 14, 3 + 48 / 14, 3 + 48 / 14 + 16 / 12]
    assert ends == pytest.approx(expected)
    assert projection.changes(ramp, projection.uni_units, 7) == ((3, 14), (6, 12))
    ends = projection.ends(ramp, lambda nodes: projection.micro_units(32, nodes), 5)
    assert ends == pytest.approx([1.0, 2.0, 3.0, 4.5, 6.0])
    assert [Ramp(2, 5, every=1.0).nodes(time) for time in (0.0, 1.0, 2.0)] == [2, 4, 5]


def test_the_time_to_a_gap_is_that_of_the_first_iteration_below_it() -> None:
    """Infinite where there is none."""
    gaps, times = [0.5, 0.05, 0.2, 0.01], [1.0, 2.0, 3.0, 4.0]
    assert projection.time_to(0.1, gaps, times) == 2.0
    assert projection.time_to(1e-3, gaps, times) == math.inf


def test_local_sgd_by_micro_tasks_while_nodes_leave() -> None:
    """16 tasks take one turn on 16 nodes, two on 14 or 12; half of the samples are half of the time."""
    ramp = Ramp(16, 12, every=2.0)
    ends = projection.ends_of_micro_local_sgd(ramp, [2048, 2048, 2048, 2048, 1024], 16, 128)
    assert ends == pytest.approx([1.0, 2.0, 4.0, 6.0, 7.0])
    assert projection.ends_of_micro_local_sgd(ramp, [4096, 4096], 32, 128) == pytest.approx([2.0, 5.0])


def test_local_sgd_by_uni_tasks_while_nodes_leave() -> None:
    """Each iteration takes a unit, and has as many samples as there are tasks; the last one of an epoch takes less."""
    ends = projection.ends_of_uni_local_sgd([2048, 1792, 896], [16, 14, 14], 128)
    assert ends == pytest.approx([1.0, 2.0, 2.5])
    # An epoch is two and a half iterations of 16 tasks: they end at 1, 2, 2.5 and 3.5, and nodes leave at 3 and 6.
    ramp = Ramp(16, 12, every=3.0)
    changes = projection.changes_of_local_sgd(ramp, 5120, 128)
    assert changes[0] == (4, 14)
    # 3072 samples are left then, one iteration of 14 and the rest of an epoch of 5120: 4.5, 5.214, 6.214.
    assert changes[1:] == ((7, 12),)


def test_uni_and_micro_tasks_are_charged_alike_where_nothing_changes() -> None:
    """16 of either on 16 nodes: the same iterations take the same time."""
    samples = [2048, 2048, 904]
    micro = projection.ends_of_micro_local_sgd(Ramp(16, 16, every=1.0), samples, 16, 128)
    assert micro == pytest.approx(projection.ends_of_uni_local_sgd(samples, [16] * 3, 128))


def test_an_accuracy_is_reached_between_two_epochs() -> None:
    """By a straight line, which begins at the accuracy of guesses; infinite where it is never reached."""
    assert images.time_to(0.6, [0.5, 0.7], [2.0, 3.0]) == pytest.approx(2.5)
    assert images.time_to(0.3, [0.5, 0.7], [2.0, 3.0]) == pytest.approx(1.0)
    assert images.time_to(0.9, [0.5, 0.7], [2.0, 3.0]) == math.inf


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
def test_rows_in_the_order_of_their_labels_in_contiguous_parts(make: Callable[[np.ndarray], Any]) -> None:
    """Each part has its own rows; all but one have one label."""
    rng = np.random.default_rng(0)
    X, y = fig7.by_label(make(rng.random((400, 5))), rng.integers(0, 2, 400).astype(np.int32))
    assert (np.diff(y) >= 0).all()
    source = fig7.contiguous(X, y, 8)
    parts = [source.load(info.id, ANY_STATE) for info in source.infos(ANY_STATE)]
    assert len(parts) in (7, 8)
    assert np.concatenate([part.targets for part in parts]).tolist() == y.tolist()
    assert sum(len(set(part.targets.tolist())) > 1 for part in parts) <= 1


def test_swimlanes_begin_together() -> None:
    """The first task tells the time before the sum, so an iteration began by its own seconds before that."""
    table = RecordTable(
        IterationRecord(
            iteration=number, epochs=number, time_s=time_s, num_tasks=2, samples=4, seconds=seconds, num_chunks=CHUNKS
        )
        for number, time_s, seconds in ((1, 2.0, {"n0": 0.5, "n1": 1.0}), (2, 3.25, {"n0": 0.75, "n1": 0.5}))
    )
    assert lanes.starts(table) == pytest.approx([0.0, 1.0])
    assert balance.units_of(table) == pytest.approx([1.0 / balance.ITERATION_S, 0.75 / balance.ITERATION_S])
    assert balance.wall_units(table) == pytest.approx([1.0 / balance.ITERATION_S, 0.75 / balance.ITERATION_S])
    kept = {"no policy": [balance.to_json(record) for record in table]}
    assert lanes.tables_of(json.loads(json.dumps(kept)))["no policy"] == table


def test_what_a_perfect_split_takes() -> None:
    """Three fast nodes and one at half the speed are as fast as three and a half."""
    assert balance.ideal_units((1.0, 1.0, 1.0, 2.0)) == pytest.approx(4 / 3.5)


def test_a_gap_that_is_reached_by_none_has_an_empty_panel(tmp_path: Path) -> None:
    """The others are drawn; a run of one iteration is a point."""
    pytest.importorskip("matplotlib")
    curves = {"1": [[(1, 16.0, 0.5), (2, 32.0, 0.4)]], "4": [[(1, 4.0, 0.5)]]}
    rows = [
        growth_row(title, 1e-3, epochs, by="tasks", panel=title, goal="gap 0.001", curves=curves)
        for title, epochs in (("clicks", {1: math.inf, 4: math.inf}), ("HIGGS", {1: 5.0, 4: math.inf}))
    ]
    assert draw("fig1", rows, tmp_path, "files of a test") == [tmp_path / "fig1.png", tmp_path / "fig1-curves.png"]
    assert (tmp_path / "fig1-curves.png").stat().st_size > 0


def test_figures_over_time_and_over_epochs_have_the_papers_numbers(tmp_path: Path) -> None:
    """What the rows of figures 4 and 5 have is drawn as figures 9 and 10, too."""
    pytest.importorskip("matplotlib")
    curves = {"uni": [[(1, 1.0, 0.5), (2, 2.5, 0.1)]], "16": [[(1, 1.0, 0.5), (2, 3.0, 0.1)]]}
    details = {"panel": "HIGGS", "curves": curves}
    speeds = {"goal": "gap 0.1", "direction": "in", "every": 2.0, "reached": {"uni": 2.5, "16": math.inf}}
    for name, more, files in (
        ("fig4", speeds, ["fig4.png", "fig4-curves.png", "fig9.png"]),
        ("fig5", {}, ["fig5.png", "fig10.png"]),
        ("fig7", {}, ["fig7.png"]),
    ):
        rows = [Row(name, "HIGGS", None, "", "", details={**details, **more})]
        assert [path.name for path in draw(name, rows, tmp_path, "files of a test")] == files


def image_settings(folder: Path, X: np.ndarray) -> tuple[Settings, images.Images]:
    """One seed and three epochs of these images, whose labels are random."""
    data = ImageData(X, np.arange(len(X)) % 10, X[:32], np.arange(32) % 10)
    settings = Settings(seeds=(0,), is_quick=True, cache=folder, rows=(), images=(("noise", data),))
    return settings, images.Images("noise", "noise", len(X), (math.inf,), data)


def test_plain_torch_takes_images_of_three_channels(tmp_path: Path) -> None:
    """As CIFAR-10 has them; the counterpart of local SGD has as many epochs."""
    pytest.importorskip("torch")
    X = np.random.default_rng(0).integers(0, 256, (64, 3, 32, 32), dtype=np.uint8)
    settings, noise = image_settings(tmp_path, X)
    [scores] = fig8.torch_scores(settings, noise, 32)
    [fit] = images.fits(settings, noise, num_tasks=2)
    assert len(scores) == len(fit.scores) == images.QUICK_EPOCHS


def test_local_sgd_on_nodes_of_two_speeds_ends_at_the_perfect_split(tmp_path: Path) -> None:
    """An even split takes 1.5 units; Rebalance comes to 1.2. Units are virtual, so this is exact."""
    pytest.importorskip("torch")
    X = np.random.default_rng(0).integers(0, 256, (6 * 16 * images.SAMPLES_OF_A_TASK, 16, 16), dtype=np.uint8)
    settings, noise = image_settings(tmp_path, X)
    [fit] = images.fits(settings, noise, slowdown=1.5)
    assert fit.seconds[0] == pytest.approx(1.5, rel=0.01)
    assert np.median(fit.seconds[8:]) == pytest.approx(1.2, rel=0.03)
    assert images.Fit([2048, 48], [16, 16], [2], [0.1], [1.2, 4.5 / 128]).whole_units() == pytest.approx([1.2, 1.5])


@pytest.mark.slow
def test_an_evaluation_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    """By Ctrl-C, with the runs that have ended; the next time only the others are made."""
    cache = tmp_path / "out/cache"
    command = ["-m", "chicle_elastic", "evaluate", "--quick", "--rows", "1000", "--only", "fig1,fig5"]
    command += ["--out", str(tmp_path / "out")]
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert any("epochs by tasks" in line for line in first.stdout), "figure 1 has its lines"
        first.send_signal(signal.SIGINT)
        assert first.wait(timeout_s(60)) == 130
    kept = {path.name: path.stat().st_mtime_ns for path in cache.glob("*.json")}
    assert "8 nodes 1.5x slower" in run_python(*command, seconds=300, cwd=ROOT).stdout
    found = {path.name: path.stat().st_mtime_ns for path in cache.glob("*.json")}
    assert 8 <= len(kept) < len(found) == 14
    assert kept == {name: found[name] for name in kept}
