"""Tables as notebooks show them: a caption, the first and last rows, and how many are between."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

NUM_FIRST_SHOWN = 3
NUM_LAST_SHOWN = 5
SHORT_TEXT = 24


def html_table(columns: Mapping[str, Sequence[Any]], *, caption: str, rows: str) -> str:
    """The table. `rows`: what the rows are, for the line that stands for those that are left out."""
    count = len(next(iter(columns.values()), ()))
    shown: list[int | None] = list(range(count))
    if count > NUM_FIRST_SHOWN + NUM_LAST_SHOWN + 1:
        shown = [*shown[:NUM_FIRST_SHOWN], None, *shown[-NUM_LAST_SHOWN:]]
    lines = ["<table>", f"<caption>{html.escape(caption)}</caption>", "<thead><tr>"]
    lines += [f"<th>{html.escape(name)}</th>" for name in columns]
    lines.append("</tr></thead><tbody>")
    for row in shown:
        if row is None:
            num_hidden = count - NUM_FIRST_SHOWN - NUM_LAST_SHOWN
            lines.append(f'<tr><td colspan="{len(columns)}">{num_hidden} more {rows}</td></tr>')
            continue
        cells = "".join(_cell(values[row]) for values in columns.values())
        lines.append(f"<tr>{cells}</tr>")
    lines.append("</tbody></table>")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    """A cell with a short text, and nothing for a figure that the row has not; sentences have room for some words."""
    if isinstance(value, str):
        style = "text-align: left" + ("; min-width: 24em" if len(value) > SHORT_TEXT else "")
        return f'<td style="{style}">{html.escape(value)}</td>'
    if isinstance(value, float):
        value = None if math.isnan(value) else f"{value:.4g}"
    return f"<td>{'' if value is None else html.escape(str(value))}</td>"
