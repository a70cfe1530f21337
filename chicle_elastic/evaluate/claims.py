"""The claims of the paper beside what was measured here, with a verdict by rule.

    same             the paper's number is within two standard errors of the mean here, or within a tenth of it
    better           the number here is on the claim's side of the paper's
    not reproduced   it is not
    not measured     the runs that it needs are not among these

The spread is that of the seeds, as a standard deviation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from chicle_elastic.evaluate.bars import Row
from chicle_elastic.evaluate.projection import time_to
from chicle_elastic.evaluate.runs import Problem, Settings, gaps, problems

NEAR = 0.1
HEADER = "| figure | claim of the paper | there | here | verdict |\n| --- | --- | ---: | ---: | --- |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim, and one number of each seed or setting."""

    figure: str  # its number in the paper
    what: str
    there: float
    here: Sequence[float]
    is_less_better: bool = True
    unit: str = ""

    def verdict(self) -> str:
        """See the top of the module."""
        if not self.here or not all(map(math.isfinite, self.here)):
            return "not measured"
        mean = fmean(self.here)
        error = stdev(self.here) / math.sqrt(len(self.here)) if len(self.here) > 1 else 0.0
        if abs(mean - self.there) <= max(2 * error, NEAR * abs(self.there)):
            return "same"
        return "better" if (mean < self.there) == self.is_less_better else "not reproduced"

    def as_markdown(self) -> str:
        """A line of the table."""
        finite = [value for value in self.here if math.isfinite(value)]
        spread = f" +- {stdev(finite):.2g}" if len(finite) > 1 else ""
        shown = f"{fmean(finite):.3g}{spread}{self.unit}" if finite else ""
        return f"| {self.figure} | {self.what} | {self.there:.3g}{self.unit} | {shown} | {self.verdict()} |"


def claims_of(settings: Settings, rows: Sequence[Row]) -> list[Claim]:
    """Collect the claims: from the runs of figure 1, whose seeds are known, and from the rows of the other figures."""

    def values(part: str) -> list[float]:  # of settings: a row that sums them up has no details
        return [row.value for row in rows if row.part == part and row.value is not None and row.details]

    found = [
        Claim(
            figure="1",
            what=f"CoCoA, {problem.data.title}: more iterations with 32 tasks than with 16, to {problem.gaps[0]:g}",
            there=65.0,
            here=_growth(settings, problem) if any(row.part == "fig1" for row in rows) else (),
            is_less_better=False,
            unit=" %",
        )
        for problem in problems(settings, [])
    ]
    return [
        *found,
        Claim(figure="4", what="CoCoA, elastic: time over the best micro-tasks", there=1.0, here=values("fig4")),
        Claim(
            figure="5", what="CoCoA, 8 + 8 nodes: time over the best micro-tasks", there=1.2 / 1.25, here=_times(rows)
        ),
        Claim(
            figure="6",
            what="CoCoA, balancing: time of an iteration over the ideal",
            there=1.0,
            here=_balance(rows, "CoCoA"),
        ),
        Claim(figure="8", what="local SGD: epochs over those of mini-batch SGD", there=1.0, here=values("fig8")),
        Claim(figure="9", what="local SGD, elastic: time over the best micro-tasks", there=1.0, here=values("fig9")),
        Claim(figure="10", what="8 + 8 nodes: units of an iteration", there=1.2, here=_units(rows)),
        Claim(
            figure="11",
            what="local SGD, balancing: time of an iteration over the ideal",
            there=1.0,
            here=_balance(rows, "local SGD"),
        ),
    ]


def _growth(settings: Settings, problem: Problem) -> list[float]:
    """Per cent more iterations with 32 tasks than with 16, of each seed."""
    counts = {
        tasks: [
            time_to(problem.gaps[0], run, range(1, len(run) + 1))
            for run in (gaps(settings, problem, num_tasks=tasks, seed=seed) for seed in settings.seeds)
        ]
        for tasks in (16, 32)
    }
    return [100.0 * (many / few - 1.0) for few, many in zip(counts[16], counts[32], strict=True)]


def _times(rows: Sequence[Row]) -> list[float]:
    return [row.value for row in rows if row.part == "fig5" and row.value is not None and row.tol is not None]


def _units(rows: Sequence[Row]) -> list[float]:
    return [float(row.measured) for row in rows if row.part == "fig5" and row.tol is None]


def _balance(rows: Sequence[Row], algorithm: str) -> list[float]:
    return [
        row.value
        for row in rows
        if row.part == "balance" and row.details["algorithm"] == algorithm and row.value is not None
    ]
