"""Gates and targets, how a measured value is held against them, and the line of the table that shows it."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

MISSED = "GATE MISSED"


@dataclass(frozen=True, slots=True)
class Bar:
    """Say what a value has to be: below the gate the benchmark fails, the target is where we want to be.

    Attributes:
        gate: The least (or, with `at_most`, the most) that passes.
        target: The same for what is aimed at; None where the gate is all there is.
        at_most: Smaller is better.
    """

    gate: float
    target: float | None = None
    at_most: bool = False

    def verdict(self, value: float) -> str:
        """ "target met", "gate passed" or "GATE MISSED"."""

        def holds(limit: float) -> bool:
            return value <= limit if self.at_most else value >= limit

        if math.isnan(value) or not holds(self.gate):
            return MISSED
        return "target met" if self.target is None or holds(self.target) else "gate passed"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table.

    Attributes:
        part: Part of the benchmark.
        what: Data and problem.
        tol: Tolerance, where there is one.
        measured: Ours, as text.
        against: What it is compared with, as text.
        value: The figure that the bar is about (a ratio, ms or bytes); None when there is none, infinite where ours
            did not get there.
        bar: What it has to be; None when nothing is asked.
        details: More figures, for the JSON.
    """

    part: str
    what: str
    tol: float | None
    measured: str
    against: str
    value: float | None = None
    bar: Bar | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def verdict(self, *, judged: bool) -> str:
        """Return what the bar says; nothing in a quick run, whose data are too small for it."""
        if self.bar is None or self.value is None:
            return ""
        return self.bar.verdict(self.value) if judged else "not judged"

    def as_markdown(self, *, judged: bool) -> str:
        """The line, as Markdown."""
        sign = "<=" if self.bar and self.bar.at_most else ">="
        gate = f"{sign} {self.bar.gate:.4g}" if self.bar else ""
        target = f"{sign} {self.bar.target:.4g}" if self.bar and self.bar.target is not None else ""
        tol = "" if self.tol is None else f"{self.tol:.0e}"
        value = "" if self.value is None else f"{self.value:.2f}"
        cells = (self.what, tol, self.measured, self.against, value, gate, target, self.verdict(judged=judged))
        return "| " + " | ".join(cells) + " |"

    def as_json(self, *, judged: bool) -> dict[str, Any]:
        """The line, for JSON."""
        return {**asdict(self), "verdict": self.verdict(judged=judged)}


HEADER = (
    "| what | tol | ours | against | value | gate | target | verdict |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)
