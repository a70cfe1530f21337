"""Gates and targets of the SVM benchmark as data, and how a measured value is held against them."""

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bar:
    """What a value has to be: below the gate the benchmark fails, the target is where we want to be.

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
            return "GATE MISSED"
        return "target met" if self.target is None or holds(self.target) else "gate passed"


SPEED: dict[tuple[str, str], dict[float, Bar]] = {
    ("higgs", "liblinear"): {1e-3: Bar(10, 16), 1e-5: Bar(14, 24)},
    ("higgs", "Snap ML"): {1e-3: Bar(2, 2.5), 1e-5: Bar(3.5, 5)},
    ("criteo", "liblinear"): {1e-3: Bar(3.5, 5.4), 1e-5: Bar(4.5, 6.2)},
    ("criteo", "Snap ML"): {1e-3: Bar(1.3, 1.8), 1e-5: Bar(2, 2.9)},
    ("criteo-c1", "liblinear"): {1e-3: Bar(3, 4.6), 1e-5: Bar(2, 3)},
    ("criteo-c1", "Snap ML"): {1e-3: Bar(1.4, 2), 1e-5: Bar(1.6, 2.8)},
    ("mnist", "liblinear"): {1e-3: Bar(5, 8), 1e-5: Bar(2, 4)},
    ("mnist", "Snap ML"): {1e-3: Bar(1.3, 2), 1e-5: Bar(0.9, 1.5)},
}
"""Time of the peer over ours, by case and peer, then by tolerance."""
SMALL_MS = Bar(10, at_most=True)
THREADS = {"higgs": Bar(1.6, 1.8), "criteo": Bar(1.2, 1.4)}
"""Time of one thread over that of two."""
EPOCH = {
    ("higgs", "first"): Bar(8, at_most=True),
    ("higgs", "last"): Bar(3.5, at_most=True),
    ("mnist", "first"): Bar(1.8, at_most=True),
    ("mnist", "last"): Bar(1.8, at_most=True),
    ("criteo", "first"): Bar(13, at_most=True),
    ("criteo", "last"): Bar(9, at_most=True),
}
"""Time of a pass over that of one read of the same bytes."""
MEMORY_BYTES = Bar(24, at_most=True)
"""Per sample, beyond X, y and `MEMORY_VECTORS` float64 vectors of n_features."""
MEMORY_VECTORS = 16


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table.

    Attributes:
        part: Part of the benchmark.
        what: Data and problem.
        tol: Tolerance, where there is one.
        measured: Ours, as text.
        against: What it is compared with, as text.
        value: The figure that the bar is about (a ratio, ms or bytes); None when there is none.
        bar: What it has to be; None when nothing is asked.
        details: More figures, for the JSON.
    """

    part: str
    what: str
    tol: float | None
    measured: str
    against: str
    value: float | None
    bar: Bar | None
    details: dict[str, Any]

    def verdict(self, *, judged: bool) -> str:
        """What the bar says; nothing in a quick run, whose data are too small for it."""
        if self.bar is None or self.value is None:
            return ""
        return self.bar.verdict(self.value) if judged else "not judged"

    def as_markdown(self, *, judged: bool) -> str:
        """The line, as Markdown."""
        sign = "<=" if self.bar and self.bar.at_most else ">="
        gate = f"{sign} {self.bar.gate:g}" if self.bar else ""
        target = f"{sign} {self.bar.target:g}" if self.bar and self.bar.target is not None else ""
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
