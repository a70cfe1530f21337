"""Every linear trainer, on every layout and number of tasks, disturbed and not, comes to what it once came to."""

import json

import pytest

from tests.solvers.golden_runs import COPIES, FILE, NODES, TRAINERS, Run, cells, objective

GOLDEN = json.loads(FILE.read_text())
EVERY_DAY = ("1", "3", "crash")
"""What a run meets in `make test`; the others are slow."""


def test_the_file_has_all_runs():
    """Neither more nor less."""
    assert list(GOLDEN) == [f"{trainer}/{layout}" for trainer, layout in cells()]


@pytest.mark.parametrize(("trainer", "layout"), cells())
@pytest.mark.parametrize(
    "nodes", [pytest.param(nodes, marks=() if nodes in EVERY_DAY else pytest.mark.slow) for nodes in NODES]
)
def test_a_run_comes_to_the_optimum_in_as_many_iterations(trainer, layout, nodes):
    """Certified, at a tight tol and at the default one; other kernels of BLAS may need a few more iterations."""
    golden, run = GOLDEN[f"{trainer}/{layout}"], Run(trainer=trainer, layout=layout, nodes=nodes)
    for tol, once in zip((TRAINERS[trainer].tol, run.tol), golden["iterations"][nodes], strict=True):
        result, model = run.result(tol)
        assert result.has_finished
        assert -1e-9 <= result.history[-1].figures["duality_gap"] <= tol
        assert objective(trainer, layout, model) <= golden["objective"] * (1 + tol + run.tol)
        assert objective(trainer, layout, model) >= golden["objective"] * (1 - run.tol)
        assert len(result.history) <= max(once + 1, (1.25 if trainer in COPIES else 1.1) * once)
    if len(result.history) > 3:  # else it has ended before anything could happen
        counts = {"join": {1, 3}, "leave": {2, 3}, "crash": {2, 3}}
        assert set(result.history.column("num_tasks").tolist()) == (counts[nodes] if nodes in counts else {int(nodes)})
        assert (result.aborted > 0) == (nodes == "crash")
