"""Every linear trainer, on every layout and number of tasks, disturbed and not, comes to what it once came to."""

import dataclasses
import json

import pytest

from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.simulate.scenario import SimulatedNetwork
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from tests.solvers.golden_runs import COPIES, DIES, FILE, LAYOUTS, NODES, STEADY, TRAINERS, Run, cells, objective

GOLDEN = json.loads(FILE.read_text())
EVERY_DAY = ("1", "crash")
"""What a run meets in `make test`, where three tasks become two in a crash; the others are slow."""


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


@pytest.mark.parametrize("dies_s", [1.9, 2.5, 4.2, 4.9])
@pytest.mark.parametrize("trainer", ["poisson", "huber", "squared epsilon-insensitive"])
def test_rows_that_are_away_for_iterations_are_gathered_when_they_are_back(trainer, dies_s):
    """Few wide rows, of which those of a lost node are read so slowly that passes go by without them."""
    nodes = dataclasses.replace(STEADY, count=2), dataclasses.replace(DIES, dies_s=dies_s)
    for rate in (1e4, 1e5):
        run = Run(trainer=trainer, layout="wide", nodes="3")
        result, model = run.result(1e-5, nodes=nodes, network=SimulatedNetwork(load_bytes_per_s=rate))
        assert result.history[-1].figures["duality_gap"] <= 1e-5
        assert objective(trainer, "wide", model) <= GOLDEN[f"{trainer}/wide"]["objective"] * (1 + 1e-5 + run.tol)


@pytest.mark.parametrize("cell", [cell for cell in cells() if cell[1] in ("dense", "wide")])
def test_a_job_goes_on_from_a_checkpoint_of_any_phase(tmp_path, cell):
    """On fewer tasks: what the next pass needs is part of the progress, and few passes are made twice."""
    (trainer, layout), golden = cell, GOLDEN["/".join(cell)]
    run = Run(trainer=trainer, layout=layout, nodes="3")
    for stop in (1, 2, 3, 5):
        for num_tasks, most, resume in ((4, stop, False), (2, 400, True)):
            settings = CheckpointSettings(
                folder=str(tmp_path / str(stop)), every_iterations=1000 if resume else stop, resume=resume
            )
            job = dataclasses.replace(run.job(run.tol), max_iterations=most, checkpoint=settings)
            outcome = InProcess(num_tasks=num_tasks).run(job)
        assert -1e-9 <= outcome.history[-1].figures["duality_gap"] <= run.tol
        assert len(outcome.history) <= 1.1 * golden["iterations"]["3"][1] + 6
        model = outcome.model.reshape(-1, LAYOUTS[layout]["features"] + 1)
        assert abs(objective(trainer, layout, model) / golden["objective"] - 1) <= run.tol
