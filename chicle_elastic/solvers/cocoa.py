"""CoCoA with stochastic dual coordinate descent, for hinge, squared hinge and logistic loss.

Every task improves the duals of its own samples against a local copy of w and returns the change of w; the trainer adds
the changes (gamma = 1), which is safe because each task damps its steps by sigma' = tasks x threads (Ma et al. 2015,
"Adding vs. averaging in distributed primal-dual optimization", eq. 9 and section 4; Chicle paper, section on CoCoA).
The duals lie in the chunk state and move with their samples, so w = w(alpha) holds whoever owns which chunk.

Stopping. The duality gap bounds the distance to the optimum. During a pass the kernel sums an *estimate* at the moving
vector; it only triggers the certificate, which rebuilds w from the duals in float64 on all tasks and sums losses and
dual values at that fixed w. Only a certificate stops a run.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import Action, Budget, Context, Report, Solver, StopFlag, Trainer, Update, Verdict
from chicle_elastic.solvers.local_chunk import LocalChunk, RowBlock
from chicle_elastic.solvers.objectives import Loss, upper_bounds

if TYPE_CHECKING:
    from chicle_elastic.solvers.kernels.scd import SampleTable
    from chicle_elastic.solvers.kernels.tables import RowTable

MIN_VALUES_PER_THREAD = 1 << 18
"""Feature values per thread below which another thread costs more than it brings."""
SLICE_BUCKETS = 1024
"""Buckets between two looks at the clock when the budget has a deadline (the stop flag is polled more often)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CocoaTrainer(Trainer):
    """Linear classifier, binary or one-vs-rest; all outputs share an iteration.

    The model is w of shape (outputs, num_features + 1), flattened; the last column belongs to the intercept column.

    Attributes:
        loss: "hinge", "squared_hinge" or "logistic".
        C: Factor of the sum of losses, > 0 (see `objectives`).
        tol: Relative duality gap, per output, at which to stop.
        intercept_scaling: Value of the constant column; 0 for no intercept.
        class_weights: Factor of C per class code; None for 1.
        num_threads: Most threads a task may use; fewer are used on small data.
    """

    loss: str = "hinge"
    C: float = 1.0
    tol: float = 1e-3
    intercept_scaling: float = 1.0
    class_weights: tuple[float, ...] | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        Loss.named(self.loss)
        if not self.C > 0 or not self.tol >= 0 or self.num_threads < 1:
            raise UsageError(
                f"CoCoA needs C > 0, tol >= 0 and num_threads >= 1, got C={self.C}, tol={self.tol}, "
                f"num_threads={self.num_threads}"
            )

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros, shape (outputs * (num_features + 1),), float64."""
        return np.zeros(num_outputs(schema) * (schema.num_features + 1))

    def state(self, schema: DataSchema) -> StateSpec:
        """One dual per sample and output, float64."""
        return StateSpec(outputs=num_outputs(schema), width=1, dtype="float64")

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Per output k: "loss/k", "gap/k" (estimate, from `solve`) and "dual/k" (from `evaluate`)."""
        return tuple(f"{name}/{k}" for k in range(num_outputs(schema)) for name in ("loss", "gap", "dual"))

    def solver(self, ctx: Context) -> "CocoaSolver":
        """The local solver of one task."""
        return CocoaSolver(ctx, self)

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """w + sum of the changes (gamma = 1)."""
        return model + weighted_sum

    def rebuild(self, model: Array, contribution: Array) -> Array:
        """w(alpha): nothing of the old model is kept."""
        return contribution

    def primal_and_dual(self, model: Array, report: Report) -> tuple[Array, Array]:
        """P and D per output at a certificate, each of shape (outputs,), float64."""
        half_norms = self._half_norms(model, report)
        loss = _column(report.metrics, "loss")
        dual = _column(report.metrics, "dual")
        return half_norms + loss, dual - half_norms

    def relative_gap(self, model: Array, report: Report) -> float:
        """Largest (P - D) / P over the outputs; an estimate unless the report is a certificate."""
        if report.is_certificate:
            primal, dual = self.primal_and_dual(model, report)
            gap = primal - dual
        else:
            primal = self._half_norms(model, report) + _column(report.metrics, "loss")
            gap = _column(report.metrics, "gap")
        return float(np.max(gap / np.maximum(primal, np.finfo(np.float64).tiny)))

    def figures(self, model: Array, report: Report) -> Mapping[str, float]:
        """ "objective", "dual_objective" and "duality_gap" at a certificate, else "duality_gap_estimate"."""
        gap = self.relative_gap(model, report)
        if not report.is_certificate:
            return {"duality_gap_estimate": gap}
        primal, dual = self.primal_and_dual(model, report)
        return {"objective": float(primal.sum()), "dual_objective": float(dual.sum()), "duality_gap": gap}

    def verdict(self, model: Array, report: Report) -> Verdict:
        """Certify when the estimate is near `tol` or long ago; stop only on a certificate."""
        gap = self.relative_gap(model, report)
        is_last = report.iteration >= report.max_iterations
        if report.is_certificate:
            if gap <= self.tol and report.is_complete:
                return Verdict(action=Action.STOP, reason=f"relative duality gap {gap:.2e} <= tol {self.tol:.2e}")
            if is_last:
                return Verdict(
                    action=Action.STOP,
                    reason=f"all {report.max_iterations} iterations used at a relative duality gap of {gap:.2e}",
                )
            return Verdict(action=Action.GO_ON)
        since = report.iteration - report.last_certificate
        is_near = gap <= 2.0 * self.tol and since >= max(1, report.last_certificate // 10)
        is_long_ago = since >= max(16, report.last_certificate)
        if is_last or (report.is_complete and (is_near or is_long_ago)):
            return Verdict(action=Action.CERTIFY, reason=f"estimated relative duality gap {gap:.2e}")
        return Verdict(action=Action.GO_ON)

    def _half_norms(self, model: Array, report: Report) -> Array:
        """1/2 |w_k|^2 per output, shape (outputs,)."""
        outputs = sum(name.startswith("loss/") for name in report.metrics)
        w = model.reshape(outputs, -1)
        half_norms: Array = 0.5 * np.einsum("kd,kd->k", w, w)
        return half_norms


def num_outputs(schema: DataSchema) -> int:
    """One output for two classes, else one per class.

    Raises:
        UsageError: The targets are not class codes.
    """
    if schema.target_dtype != "int32" or schema.num_classes < 2:
        raise UsageError(
            f"a linear classifier needs int32 class codes of at least two classes, but the data has targets of dtype "
            f"{schema.target_dtype} and {schema.num_classes} classes"
        )
    return 1 if schema.num_classes == 2 else schema.num_classes


def _column(metrics: Mapping[str, float], name: str) -> Array:
    """The metric `name` of all outputs, in order."""
    outputs = sum(key.startswith(name + "/") for key in metrics)
    return np.array([metrics[f"{name}/{k}"] for k in range(outputs)])


@dataclass(slots=True)
class _Tables:
    """What the kernels need of the local chunks, valid until chunks are added or removed."""

    ids: list[ChunkId]
    rows: "RowTable"
    samples: "SampleTable"
    bucket_chunk: Array
    bucket_row: Array
    num_outputs: int
    num_values: int
    keep_alive: list[Any] = field(default_factory=list)


class CocoaSolver(Solver):
    """Local SCD passes over the chunks of one task, with threads that each keep a replica of w."""

    def __init__(self, ctx: Context, trainer: CocoaTrainer) -> None:
        super().__init__(ctx)
        self.trainer = trainer
        self.loss = int(Loss.named(trainer.loss))
        self._tables: _Tables | None = None
        self._norms: dict[ChunkId, Array] = {}
        self._pool: ThreadPoolExecutor | None = None

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """Forget the tables; they are built again inside the next iteration, when chunks may be read."""
        super().attach(added, removed)
        for chunk_id in (*removed, *(chunk.id for chunk in added)):
            self._norms.pop(chunk_id, None)
        self._tables = None

    def solve(self, model: Array, budget: Budget) -> Update:
        """One SCD pass over the local samples (or `budget.samples` of them)."""
        from chicle_elastic.solvers.kernels import scd

        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=1.0)
        tables = self._local_tables()
        order = self.ctx.rng.permutation(len(tables.bucket_row))
        if budget.samples is not None:
            order = order[: -(-budget.samples // scd.BUCKET_ROWS)]
        num_threads = self._useful_threads(tables)
        sigma = float(budget.num_tasks * num_threads)
        w = model.reshape(tables.num_outputs, -1)

        def run(part: Array) -> tuple[Array, Array, Array]:
            vectors = w.copy()
            processed = np.zeros(len(tables.ids), dtype=np.int64)
            stats = np.zeros((tables.num_outputs, 2))
            num_slices = 1 if budget.deadline_s is None else max(1, len(part) // SLICE_BUCKETS)
            for piece in np.array_split(part, num_slices):
                if budget.is_spent():
                    break
                scd.scd_pass(
                    self.loss,
                    tables.rows,
                    tables.samples,
                    tables.bucket_chunk,
                    tables.bucket_row,
                    piece,
                    _positives(tables.num_outputs),
                    self.trainer.intercept_scaling,
                    sigma,
                    budget.stop.memory,
                    vectors,
                    processed,
                    stats,
                )
            return vectors, processed, stats

        results = self._run_parts(run, np.array_split(order, num_threads), budget.stop)
        delta = np.zeros_like(w)
        for vectors, _, _ in results:
            delta += vectors - w
        delta /= sigma
        processed = sum(part for _, part, _ in results)
        for chunk_id, num_rows in zip(tables.ids, processed.tolist(), strict=True):
            self.chunks[chunk_id].count(num_rows)
        stats = sum(part for _, _, part in results)
        samples = int(processed.sum())
        return Update(
            delta=delta.ravel(),
            samples=samples,
            weight=1.0,
            metrics=_metrics(loss=stats[:, 0], gap=stats[:, 1]),
            is_partial=samples < sum(chunk.num_rows for chunk in self.chunks.values()),
        )

    def recover(self, model: Array) -> Array:
        """w of the local duals, in float64, flattened."""
        from chicle_elastic.solvers.kernels import scd

        if not self.chunks:
            return np.zeros_like(model)
        tables = self._local_tables()

        def run(part: Array) -> Array:
            vectors = np.zeros((tables.num_outputs, model.size // tables.num_outputs))
            scd.dual_vectors(
                tables.rows,
                tables.samples,
                part[0],
                part[-1] + 1,
                _positives(tables.num_outputs),
                self.trainer.intercept_scaling,
                vectors,
            )
            return vectors

        parts: Array = sum(self._run_parts(run, self._chunk_ranges(tables)))
        return parts.ravel()

    def evaluate(self, model: Array) -> Mapping[str, float]:
        """Sums of losses and dual values of the local samples at `model`."""
        from chicle_elastic.solvers.kernels import scd

        if not self.chunks:
            return {}
        tables = self._local_tables()

        def run(part: Array) -> Array:
            stats = np.zeros((tables.num_outputs, 2))
            scd.objective_sums(
                self.loss,
                tables.rows,
                tables.samples,
                part[0],
                part[-1] + 1,
                _positives(tables.num_outputs),
                self.trainer.intercept_scaling,
                model.reshape(tables.num_outputs, -1),
                stats,
            )
            return stats

        stats: Array = sum(self._run_parts(run, self._chunk_ranges(tables)))
        return _metrics(loss=stats[:, 0], dual=stats[:, 1])

    def close(self) -> None:
        """End the kernel threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _useful_threads(self, tables: _Tables) -> int:
        return max(1, min(self.trainer.num_threads, tables.num_values // MIN_VALUES_PER_THREAD))

    def _chunk_ranges(self, tables: _Tables) -> list[Array]:
        chunks = np.arange(len(tables.ids))
        return np.array_split(chunks, min(self._useful_threads(tables), len(chunks)))

    def _run_parts(self, run: Any, parts: Sequence[Array], stop: StopFlag | None = None) -> list[Any]:
        """`run` on each part: here when there is one, else on the persistent threads; results in order.

        When it is interrupted no thread is left writing duals behind the caller's back.
        """
        if len(parts) == 1:
            return [run(parts[0])]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.trainer.num_threads, thread_name_prefix="chicle-kernel")
        futures = [self._pool.submit(run, part) for part in parts]
        try:
            return [future.result() for future in futures]
        except BaseException:
            if stop is not None:
                stop.set()
            wait(futures)
            raise

    def _local_tables(self) -> _Tables:
        """Tables over the local chunks; called inside an iteration only, because it reads them."""
        if self._tables is None:
            self._tables = self._build_tables()
        return self._tables

    def _build_tables(self) -> _Tables:
        from chicle_elastic.solvers.kernels import scd, tables

        ids = list(self.chunks)
        blocks = [self.chunks[chunk_id].peek() for chunk_id in ids]
        rows = tables.row_table(blocks)
        lengths = np.array([len(block.targets) for block in blocks], dtype=np.int64)
        for position, chunk_id in enumerate(ids):
            if chunk_id not in self._norms:
                norms = np.empty(int(lengths[position]))
                scd.squared_norms(rows, position, self.trainer.intercept_scaling, norms)
                self._norms[chunk_id] = norms
        uppers = [self._upper(block) for block in blocks]
        samples = scd.SampleTable(
            lengths=lengths,
            targets=tables.addresses([block.targets for block in blocks]),
            duals=tables.addresses([block.state for block in blocks]),
            norms=tables.addresses([self._norms[chunk_id] for chunk_id in ids]),
            upper=np.array([0 if upper is None else upper.ctypes.data for upper in uppers], dtype=np.uint64),
            uniform_upper=float(self.trainer.C),
            like_code=np.empty(0, np.int32),
            like_real=np.empty(0, np.float64),
        )
        buckets = -(-lengths // scd.BUCKET_ROWS)
        bucket_chunk = np.repeat(np.arange(len(ids)), buckets)
        first_bucket = np.repeat(np.cumsum(buckets) - buckets, buckets)
        bucket_row = (np.arange(len(bucket_chunk)) - first_bucket) * scd.BUCKET_ROWS
        return _Tables(
            ids=ids,
            rows=rows,
            samples=samples,
            bucket_chunk=bucket_chunk,
            bucket_row=bucket_row,
            num_outputs=blocks[0].state.shape[1],
            num_values=sum(_num_values(block) for block in blocks),
            keep_alive=[blocks, uppers],
        )

    def _upper(self, block: RowBlock) -> Array | None:
        """C_i of a block, shape (n,), float64; None where it is C for all."""
        class_weights = self.trainer.class_weights
        if block.weights is None and class_weights is None:
            return None
        return upper_bounds(self.trainer.C, block.targets, block.weights, class_weights)


def _num_values(block: RowBlock) -> int:
    rows = block.rows
    return int(rows.size) if isinstance(rows, np.ndarray) else rows.num_nonzeros


def _positives(outputs: int) -> Array:
    """Positive class code of each output: 1 of two classes, else each class in turn; int32."""
    return np.arange(outputs, dtype=np.int32) if outputs > 1 else np.ones(1, dtype=np.int32)


def _metrics(**columns: Array) -> dict[str, float]:
    """{"name/k": value} of columns of shape (outputs,)."""
    return {f"{name}/{k}": float(value) for name, column in columns.items() for k, value in enumerate(column)}
