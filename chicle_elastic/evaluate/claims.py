"""The claims of the paper beside what was measured here, with a verdict by rule.

    same             the paper's number is within two standard errors of the mean here, or within a tenth of it
    better           the number here is on the claim's side of the paper's
    not reproduced   it is not
    not measured     the runs that it needs are not among these
    not judged       a quick evaluation, which has few rows and one seed; a size, which claims nothing
    no number        of the paper is at hand

The spread is that of the seeds or, where a figure has several settings, of these, as a standard deviation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from chicle_elastic.evaluate.bars import Row
from chicle_elastic.evaluate.projection import time_to
from chicle_elastic.evaluate.runs import Problem, Settings, gaps, problems

NEAR = 0.1
DOUBLED = {"batch size": 44.0}
"""Per cent more epochs in the paper, by what is doubled."""
CIFAR_ACCURACY = 65.6
"""Per cent, in the paper's text."""
MILLION_ROWS = {"HIGGS": 11.0, "Criteo": 45.84, "CIFAR-10": 0.05, "Fashion-MNIST": 0.06}
"""Of the public data sets that the paper uses, whole; by a word of their titles here."""
HEADER = "| figure | claim of the paper | there | here | verdict |\n| --- | --- | ---: | ---: | --- |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim, and one number of each seed or setting."""

    figure: str  # its number in the paper
    what: str
    there: float | None  # None where the paper gives no number, or it is not at hand
    here: Sequence[float]
    is_less_better: bool = True
    unit: str = ""
    is_size: bool = False

    def verdict(self, *, judged: bool) -> str:
        """Return one of those at the top of the module."""
        if not self.here or not all(map(math.isfinite, self.here)):
            return "not measured"
        if self.there is None:
            return "no number"
        if self.is_size or not judged:
            return "not judged"
        mean = fmean(self.here)
        error = stdev(self.here) / math.sqrt(len(self.here)) if len(self.here) > 1 else 0.0
        if abs(mean - self.there) <= max(2 * error, NEAR * abs(self.there)):
            return "same"
        return "better" if (mean < self.there) == self.is_less_better else "not reproduced"

    def as_markdown(self, *, judged: bool) -> str:
        """Return a line of the table."""
        finite = [value for value in self.here if math.isfinite(value)]
        spread = f" +- {stdev(finite):.2g}" if len(finite) > 1 else ""
        shown = f"{fmean(finite):.3g}{spread}{self.unit}" if finite else ""
        there = "" if self.there is None else f"{self.there:.3g}{self.unit}"
        return f"| {self.figure} | {self.what} | {there} | {shown} | {self.verdict(judged=judged)} |"


def claims_of(settings: Settings, rows: Sequence[Row]) -> list[Claim]:
    """Collect the claims: from the runs of figure 1, whose seeds are known, and from the rows of the other figures."""

    def values(figure: str, *, is_image: bool = False, key: str = "reached") -> list[float]:
        """Return the value of each setting that one side finished: a row that sums them up has no details."""
        of = [row for row in rows if row.part == figure and row.details.get("is_image", False) == is_image]
        return [row.value for row in of if key in row.details and row.value is not None and not math.isnan(row.value)]

    found = []
    for row in rows:
        if row.part == "table1":
            there = next((count for name, count in MILLION_ROWS.items() if name in row.what), None)
            here = [row.details["num_rows"] / 1e6]
            what = f"rows of {row.what}"
            found.append(Claim(figure="table 1", what=what, there=there, here=here, unit=" million", is_size=True))
    for problem in problems(settings, []) if any(row.part == "fig1" for row in rows) else ():
        what = f"CoCoA, {problem.data.title}: more iterations with 32 tasks than with 16, to {problem.gaps[0]:g}"
        growth = _growth(settings, problem)
        found.append(Claim(figure="1", what=what, there=65.0, here=growth, is_less_better=False, unit=" %"))
    for row in rows:
        if row.part == "fig1" and "epochs" in row.details and row.details.get("is_image"):
            what = f"{row.details['panel']}, to {row.details['goal']}: more epochs with twice the {row.details['by']}"
            there, here = DOUBLED.get(row.details["by"]), _rises(row.details["epochs"])
            found.append(Claim(figure="1", what=what, there=there, here=here, is_less_better=False, unit=" %"))
        if best := row.details.get("best"):
            there = CIFAR_ACCURACY if "CIFAR" in row.what else None
            found.append(Claim(figure="text", what=row.what, there=there, here=best, is_less_better=False, unit=" %"))
    over = "time over that of the best micro-tasks, at most"
    simple: list[tuple[str, str, float | None, Sequence[float]]] = [
        ("2, 3", "drawings of the system, of which nothing is measured", None, ()),
        ("4, 9", f"CoCoA, nodes come and go: {over}", 1.0, values("fig4")),
        ("4, 9", f"local SGD, nodes come and go: {over}", 1.0, values("fig4", is_image=True)),
        ("5, 10", f"CoCoA, 8 + 8 nodes: {over}", 1.0, values("fig5")),
        ("5, 10", f"local SGD, 8 + 8 nodes: {over}", 1.0, values("fig5", is_image=True)),
        ("5, 10", "CoCoA, 8 + 8 nodes: units of an iteration", 1.2, _units(rows, is_image=False)),
        ("5, 10", "local SGD, 8 + 8 nodes: units of an iteration", 1.2, _units(rows, is_image=True)),
        ("6", "CoCoA, balancing: time of an iteration over the ideal", 1.0, values("fig6", key="records")),
        (
            "7",
            "CoCoA, rows ordered by label: epochs over those of micro-tasks on random rows",
            None,
            values("fig7", key="curves"),
        ),
        ("8", "local SGD: epochs over those of mini-batch SGD", 1.0, values("fig8", is_image=True, key="curves")),
        ("11", "local SGD, balancing: time of an iteration over the ideal", 1.0, values("fig11", key="records")),
    ]
    return found + [Claim(figure=figure, what=what, there=there, here=here) for figure, what, there, here in simple]


def _growth(settings: Settings, problem: Problem) -> list[float]:
    """Per cent more iterations with 32 tasks than with 16, of each seed."""
    few, many = (
        [time_to(problem.gaps[0], run, range(1, len(run) + 1)) for run in gaps(settings, problem, num_tasks=tasks)]
        for tasks in (16, 32)
    )
    return [100.0 * (after / before - 1.0) for before, after in zip(few, many, strict=True)]


def _rises(epochs: Mapping[int, float]) -> list[float]:
    """Per cent more epochs with each doubling of a count, between the counts that came to the goal."""
    came = [(count, value) for count, value in epochs.items() if math.isfinite(value)]
    return [
        100.0 * ((after / before) ** (1 / math.log2(many / few)) - 1.0)
        for (few, before), (many, after) in pairwise(came)
    ]


def _units(rows: Sequence[Row], *, is_image: bool) -> list[float]:
    of = [row.details for row in rows if row.part == "fig5" and row.details.get("is_image", False) == is_image]
    return [unit for details in of for unit in details.get("units", ())]
