"""Projected time against cases of the paper that were computed by hand, and a quick evaluation that goes on."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.paper import projection
from benchmarks.paper.projection import Ramp
from tests.house.sources import ROOT
from tests.timeouts import timeout_s


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


@pytest.mark.slow
def test_a_quick_evaluation_goes_on_where_it_was(tmp_path: Path) -> None:
    """It draws its pictures; the second time no run is made again."""
    command = [sys.executable, "-m", "benchmarks.paper", "--quick", "--only", "fig5", "--out", str(tmp_path / "out")]
    kept = []
    for _ in range(2):
        ended = subprocess.run(
            command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=timeout_s(300), check=False
        )
        assert ended.returncode == 0, ended.stderr
        assert "8 nodes 1.5x slower" in ended.stdout
        kept.append({path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cache").iterdir()})
    assert len(kept[0]) == 5
    assert kept[0] == kept[1]
