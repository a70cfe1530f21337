"""The contract of docs/design 2, broken on purpose: each offender is caught by name."""

import dataclasses

import numpy as np
import pytest

from chicle_elastic.chunks.views import Chunk, DataSchema, StateSpec
from chicle_elastic.errors import ContractError
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Solver, Trainer, Update
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.testing.solver_contract import check_solver_contract
from examples.ridge import RidgeTrainer

SCHEMA = DataSchema(kind="dense", dtype="float64", num_rows=60, num_features=3, target_dtype="float64", num_classes=0)
CODES = DataSchema(kind="dense", dtype="float64", num_rows=60, num_features=3, target_dtype="int32", num_classes=2)


def make_chunks(target_dtype="float64"):
    """Six chunks of ten rows."""
    spec = StateSpec(outputs=1, width=1)
    rng = np.random.default_rng(0)
    return [
        Chunk(
            id=ChunkId(number),
            rows=rng.normal(size=(10, 3)),
            targets=rng.integers(0, 2, size=10).astype(target_dtype),
            row_ids=np.arange(10) + 10 * number,
            state=spec.zeros(10),
        )
        for number in range(6)
    ]


class GoodSolver(Solver):
    """Counts every row once, in the state; offenders differ from it by one line."""

    def solve(self, model, budget):
        samples = 0
        for chunk in self.chunks.values():
            if budget.is_spent():
                break
            samples += self.visit(chunk)
        is_partial = samples < sum(chunk.num_rows for chunk in self.chunks.values())
        return Update(delta=np.full_like(model, samples), samples=samples, weight=samples, is_partial=is_partial)

    def visit(self, chunk):
        block = chunk.read()
        block.state[...] += 1
        return len(block.targets)


class AttachReader(GoodSolver):
    """Reads at the boundary."""

    def attach(self, added, removed):
        super().attach(added, removed)
        for chunk in added:
            chunk.read()


class Skipper(GoodSolver):
    """Leaves chunk 3 out, and does not say so."""

    def solve(self, model, budget):
        return dataclasses.replace(super().solve(model, budget), is_partial=budget.is_spent())

    def visit(self, chunk):
        return 0 if chunk.id == 3 else super().visit(chunk)


class Repeater(GoodSolver):
    """Reads chunk 4 twice."""

    def visit(self, chunk):
        return super().visit(chunk) + (super().visit(chunk) if chunk.id == 4 else 0)


class Liar(GoodSolver):
    """Claims more samples than it read."""

    def visit(self, chunk):
        return super().visit(chunk) + 1


class Hoarder(GoodSolver):
    """Keeps the state of chunk 2 over the boundary and writes to it in the next iteration."""

    hoard = None

    def visit(self, chunk):
        if Hoarder.hoard is not None:
            Hoarder.hoard[...] = 7
        if chunk.id == 2:
            Hoarder.hoard = chunk.peek().state
        return super().visit(chunk)


class Writer(GoodSolver):
    """Overwrites the targets of chunk 1."""

    def visit(self, chunk):
        if chunk.id == 1:
            chunk.peek().targets[...] = 3
        return super().visit(chunk)


class StaleReader(GoodSolver):
    """Goes on reading the rows that it saw first."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.stale = {}

    def solve(self, model, budget):
        update = super().solve(model, budget)
        for chunk in self.chunks.values():
            self.stale.setdefault(chunk.id, chunk.peek().rows)
        total = sum(rows.sum() for rows in self.stale.values())
        return Update(delta=update.delta + total, samples=update.samples, weight=1.0, is_partial=update.is_partial)


class Deaf(GoodSolver):
    """Never looks at the budget."""

    def solve(self, model, budget):
        samples = sum(self.visit(chunk) for chunk in self.chunks.values())
        return Update(delta=np.zeros_like(model), samples=samples, weight=samples)


class Reshaper(GoodSolver):
    """Returns another shape than the model's."""

    def solve(self, model, budget):
        update = super().solve(model, budget)
        return Update(delta=np.zeros(7), samples=update.samples, weight=1.0)


class CountingTrainer(Trainer):
    """Averages whatever its solver class returns."""

    def __init__(self, solver_class):
        self.solver_class = solver_class

    def init(self, schema, rng):
        return np.zeros(2)

    def state(self, schema):
        return StateSpec(outputs=1, width=1)

    def solver(self, ctx):
        return self.solver_class(ctx)

    def merge(self, model, weighted_sum, total_weight):
        return model + weighted_sum / total_weight


def test_a_good_solver_passes():
    """The base of all offenders keeps the contract."""
    check_solver_contract(CountingTrainer(GoodSolver), SCHEMA, make_chunks())


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "logistic"])
def test_cocoa_keeps_the_contract(loss):
    """Kernels work on addresses; none of them may outlive its boundary."""
    check_solver_contract(LinearTrainer(loss=loss), CODES, make_chunks(target_dtype="int32"))


def test_the_ridge_example_keeps_the_contract():
    """What the documentation shows must be right."""
    check_solver_contract(RidgeTrainer(), SCHEMA, make_chunks())


@pytest.mark.parametrize(
    ("offender", "message"),
    [
        (AttachReader, r"task 'task-\d' touched chunk \d outside its iteration"),
        (Skipper, r"skipped chunk 3 in iteration 1: 0 rows processed of 10"),
        (Repeater, r"read twice chunk 4 in iteration 1: 20 rows processed of 10"),
        (Liar, r"reports 3\d samples in iteration 1, but 30 rows were read"),
        (Hoarder, r"old memory of chunk 2 in iteration \d"),
        (Writer, r"changed the rows, targets or weights of chunk 1 in iteration 1"),
        (StaleReader, r"NaN or infinity in iteration 2.*memory of a chunk that has moved"),
        (Deaf, r"asked to stop before iteration 5 and returned a full update"),
        (Reshaper, r"delta of shape \(7,\) in iteration 1; the trainer sums updates of shape \(2,\)"),
    ],
)
def test_an_offender_is_caught_by_name(offender, message):
    """Each breach is reported with task or chunk and iteration."""
    Hoarder.hoard = None
    with pytest.raises(ContractError, match=message):
        check_solver_contract(CountingTrainer(offender), SCHEMA, make_chunks())
