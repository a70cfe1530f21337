"""The badge of README.md, from what `make coverage` has measured: python -m tests.house.coverage_badge FILE.json."""

import json
import sys
from datetime import date
from pathlib import Path

from tests.house.sources import ROOT

BADGE = ROOT / "docs" / "images" / "coverage.svg"
GOOD, FAIR = 90, 80
"""Percent from which on the badge is green, and yellow."""
SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}: {value}">
<title>{label}: {value}, measured on {day}</title>
<rect width="{width}" height="20" rx="3" fill="#555"/>
<path d="M{left} 0h{right}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right}z" fill="{color}"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{left_middle}" y="14">{label}</text><text x="{right_middle}" y="14">{value}</text></g></svg>
"""


def badge(percent: float, day: date) -> str:
    """The badge as SVG.

    Args:
        percent: Lines and branches that the tests have reached, of all.
        day: Of the measurement.
    """
    color = "#3c873a" if percent >= GOOD else "#b58900" if percent >= FAIR else "#c03a2b"
    left, width = 62, 104
    return SVG.format(
        width=width,
        left=left,
        right=width - left - 3,
        left_middle=left / 2,
        right_middle=(left + width) / 2,
        label="coverage",
        value=f"{percent:.0f} %",
        day=day.isoformat(),
        color=color,
    )


def main(measured: Path) -> None:
    """Write the badge."""
    percent = json.loads(measured.read_text())["totals"]["percent_covered"]
    BADGE.write_text(badge(percent, date.today()), encoding="utf-8")
    print(f"lines and branches: {percent:.1f} %; wrote {BADGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
