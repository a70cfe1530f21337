"""How the benchmark of linear models charges, judges and reports."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import glm
from benchmarks.bars import MISSED, Bar
from benchmarks.datasets import DataSet
from benchmarks.glm_bars import HIGGS_TASKS, SMOOTH_TASKS, first_bar, reached, speed_bar, tasks_bar
from benchmarks.glm_peers import known_peers
from benchmarks.ours import fit_ours
from benchmarks.peers import Peer, Search
from benchmarks.problems import Problem, strong
from benchmarks.references import Reference

ROWS = DataSet("rows", "rows", np.array([[1.0], [-1.0], [2.0], [-0.5]]), np.array([1, 0, 1, 0]))


class Slow:
    """A library whose only weight comes closer to 1 with every iteration, and no further after the hundredth."""

    fits = 0

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def fit(self, X: Any, y: Any) -> None:
        """Count, and be as far as told."""
        type(self).fits += 1
        self.coef_ = np.array([[1.0 - 1.0 / min(self.iterations, 100)]])


def slow_search(folder: Path) -> Search:
    """Its search on a problem whose best weight is 1, or so the reference says."""
    problem = Problem(ROWS, "hinge", 1e-9)  # hardly anything but |w|^2 / 2, so less weight would do
    best = Reference(np.array([-1.0]), np.array([0.5]))
    peer = Peer("slow", "numpy", lambda _, iterations: Slow(iterations))
    return Search(peer, problem, best, folder)


def test_a_search_remembers_what_it_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest iterations are found by halving, and a second search on the same problem fits nothing."""
    monkeypatch.setattr("benchmarks.peers.primal", lambda _, coef: 2.0 - coef[0])
    search = slow_search(tmp_path)
    search.reference = Reference(np.array([0.9]), np.array([1.0]))
    assert search.fewest(0.101, cap_s=10.0) == 10
    num_fits = Slow.fits
    again = slow_search(tmp_path)
    again.reference = Reference(np.array([0.9]), np.array([1.0]))
    assert again.fewest(0.101, cap_s=10.0) == 10
    assert Slow.fits == num_fits


def test_a_peer_that_stands_still_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the hundredth iteration nothing changes any more, so the search ends long before the cap."""
    monkeypatch.setattr("benchmarks.peers.primal", lambda _, coef: 2.0 - coef[0])
    search = slow_search(tmp_path)
    search.reference = Reference(np.array([0.9]), np.array([1.0]))
    assert search.fewest(1e-3, cap_s=1e9) is None
    assert search.most_tried() == 256


def test_a_better_model_lowers_the_reference_but_not_below_its_lower_end() -> None:
    """What a peer finds counts for all; what cannot be ends the run."""
    problem = Problem(ROWS, "hinge", 1.0)
    best = Reference(np.array([0.9]), np.array([1.0]))
    best.note(problem, np.array([0.95]))
    assert best.upper[0] == 0.95
    assert best.suboptimality(np.array([0.95])) == 0.0
    with pytest.raises(SystemExit, match="better than the best possible"):
        best.note(problem, np.array([0.8]))


def test_a_fit_that_takes_too_long_ends_between_two_iterations() -> None:
    """It has a certificate of the model that it ended with, and says that it has not converged."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 20)) * np.geomspace(1, 1e3, 20)
    data = DataSet("hard", "hard", X, (X[:, 0] + rng.standard_normal(400) > 0).astype(np.int64))
    fit = fit_ours(Problem(data, "hinge", 100.0), 1e-12, num_tasks=4, max_iter=10**6, limit_s=0.05)
    assert not fit.has_converged
    assert "NOT CONVERGED" in fit.text()
    assert np.isfinite(fit.model.duality_gap_)


def test_a_fit_that_has_not_converged_misses_every_gate() -> None:
    """Its value is infinite, whatever it measured."""
    for bar in (speed_bar(0.1), SMOOTH_TASKS, first_bar(5), Bar(300, at_most=True)):
        assert bar.verdict(reached(0.0, has_converged=False)) == MISSED


def test_small_data_have_ten_milliseconds_beyond_the_ratio() -> None:
    """1.5 times the best peer and 10 ms pass; the target has no such allowance."""
    bar = speed_bar(0.002)
    assert bar.verdict((1.5 * 0.002 + 0.0099) / 0.002) == "gate passed"
    assert bar.verdict((1.5 * 0.002 + 0.0101) / 0.002) == MISSED
    assert bar.verdict(1.25) == "target met"


def test_several_tasks_are_judged_by_loss_and_columns() -> None:
    """Smooth losses with few columns by the ratio to one task, HIGGS-shaped data by another ratio, the rest not."""
    wide = DataSet("wide", "wide", np.zeros((10, 3000)), np.arange(10) % 2)
    higgs = DataSet("higgs-10-v1", "HIGGS-shaped", np.zeros((10, 28)), np.arange(10) % 2)
    real = DataSet("higgs-real-10", "HIGGS", np.zeros((10, 28)), np.arange(10) % 2)
    assert tasks_bar(Problem(ROWS, "logistic", 1.0), 1e-3) == (SMOOTH_TASKS, True)
    assert tasks_bar(Problem(wide, "logistic", 1.0), 1e-3)[1] is False
    assert tasks_bar(Problem(higgs, "hinge", strong(higgs)), 1e-5) == (HIGGS_TASKS, True)
    assert tasks_bar(Problem(higgs, "hinge", strong(higgs)), 1e-3)[1] is False
    assert tasks_bar(Problem(higgs, "hinge", 1.0), 1e-5)[1] is False
    assert tasks_bar(Problem(real, "hinge", strong(real)), 1e-5)[1] is False


@pytest.mark.slow
def test_a_quick_run_ends_with_its_result_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cell of one data set: time against a peer, iterations of two tasks, share of cells ahead."""
    liblinear, _ = known_peers()[0]
    monkeypatch.setattr(glm, "installed_peers", lambda: ([liblinear], ["the others were not asked"]))
    options = "--quick --only few-binary --loss hinge --C strong --tasks 1,2 --tol 1e-3"
    monkeypatch.setattr(
        sys, "argv", ["glm", *options.split(), "--data-dir", str(tmp_path), "--json", str(tmp_path / "r.json")]
    )
    assert glm.main() == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert result["notes"] == ["the others were not asked"]
    one, two, ahead = result["rows"]
    assert [one["part"], two["part"], ahead["part"]] == ["one task", "several tasks", "ahead"]
    assert one["details"]["peers"]["liblinear dual"]["iterations"] > 0
    assert two["details"]["tasks"] == 2
    assert {row["verdict"] for row in result["rows"]} == {"not judged"}


def test_an_unknown_name_is_refused_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message lists the names of the option."""
    monkeypatch.setattr(sys, "argv", ["glm", "--only", "iris"])
    with pytest.raises(SystemExit):
        glm.parse_arguments()
    assert "click-10k" in capsys.readouterr().err
