"""The stopping rule of trainers whose steps come to rest: certify there, and end on a certificate only."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.solvers.base import Action, Report, Trainer, Verdict
from chicle_elastic.solvers.linear.methods import MOST_COLUMNS
from chicle_elastic.solvers.linear.objectives import ROUNDING as ROUNDING
from chicle_elastic.solvers.linear.objectives import TINY as TINY

LEAST_FALL, WORTH = 0.5, 0.1
"""What is progress from one certificate to the next: of the gap, or of the objective as a share of what tol allows."""
STUCK = "no step lowers the objective any further, for rounding"
"""Why a job ends that would only repeat itself."""


class CertifiedTrainer(Trainer):
    """A trainer that certifies a duality gap.

    Attributes:
        tol: Relative duality gap at which the job ends; 0 never does.
        has_one_softmax: Whether scores are those of one distribution over all classes.
    """

    tol: float
    has_one_softmax: ClassVar[bool] = False
    uses_blas_threads: ClassVar[bool] = False

    @abstractmethod
    def primal_and_dual(self, model: Array, report: Report) -> tuple[Any, Any]:
        """P and D at a certificate: numbers, or of several outputs arrays of shape (outputs,)."""

    @abstractmethod
    def estimate(self, model: Array, report: Report) -> tuple[float, bool]:
        """Between certificates: an estimate of (P - D) / P, and whether the steps rest."""

    def floor(self, report: Report) -> float:
        """What P counts as at least, in a certificate; by default its rounding is that of numbers near it."""
        return TINY

    def has_last_word(self, report: Report) -> bool:
        """Say whether a certificate was refused that the trainer cannot better; by default never."""
        return False

    def is_stuck(self, model: Array, report: Report) -> bool:
        """Say whether such a certificate brought nothing since the last one: then rounding is all that is left."""
        now, last = (
            [figures.get(name, np.inf) for name in ("duality_gap", "objective")]
            for figures in (self.figures(model, report), report.last_figures)
        )
        return self.has_last_word(report) and not has_progress(*now, *last, tol=self.tol)

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """Never called: what is summed up is not a change of the model."""
        raise NotImplementedError(f"the sums of {type(self).__name__} are merged by advance")

    def relative_gap(self, model: Array, report: Report) -> float:
        """(P - D) / P, the largest one of several outputs; an estimate unless the report is a certificate."""
        return self.figures(model, report)["duality_gap" if report.is_certificate else "duality_gap_estimate"]

    def figures(self, model: Array, report: Report) -> Mapping[str, float]:
        """ "objective", "dual_objective" and "duality_gap" at a certificate, else "duality_gap_estimate"."""
        if not report.is_certificate:
            return {"duality_gap_estimate": self.estimate(model, report)[0]}
        primal, dual = self.primal_and_dual(model, report)
        gap = float(np.max((primal - dual) / np.maximum(primal, self.floor(report))))
        return {"objective": float(np.sum(primal)), "dual_objective": float(np.sum(dual)), "duality_gap": gap}

    def verdict(self, model: Array, report: Report) -> Verdict:
        """Certify where the steps rest; stop only on a certificate."""
        if report.is_certificate:
            gap = self.relative_gap(model, report)
            if self.tol > 0 and not gap <= self.tol and report.is_complete and self.is_stuck(model, report):
                return Verdict(action=Action.STOP, reason=STUCK)
            return verdict_of_gap(gap, self.tol, report)
        is_last = report.iteration >= report.max_iterations
        _, is_at_rest = self.estimate(model, report)
        if is_last or (is_at_rest and report.is_complete):
            return Verdict(action=Action.CERTIFY, reason="the steps rest" if is_at_rest else "iterations used")
        return Verdict(action=Action.GO_ON)


def verdict_of_gap(gap: float, tol: float, report: Report) -> Verdict:
    """Say what follows from the relative gap of a certificate; by rounding it may well be 0 or below."""
    if tol > 0 and gap <= tol and report.is_complete:
        return Verdict(action=Action.STOP, reason=f"relative duality gap {gap:.2e} <= tol {tol:.2e}")
    if report.iteration >= report.max_iterations:
        end = f"at a relative duality gap of {gap:.2e}" if report.is_complete else "while samples were missing"
        return Verdict(action=Action.STOP, reason=f"all {report.max_iterations} iterations used {end}")
    return Verdict(action=Action.GO_ON)


def has_progress(gap: float, primal: float, old_gap: float, old_primal: float, *, tol: float) -> bool:
    """Say whether a gap is smaller, or P lower, by enough to go on in the same way; NaN is not."""
    return gap < LEAST_FALL * old_gap or old_primal - primal > WORTH * tol * abs(old_primal)


def is_narrow(schema: DataSchema) -> bool:
    """Whether second derivatives of all columns fit into a message."""
    return schema.num_features < MOST_COLUMNS
