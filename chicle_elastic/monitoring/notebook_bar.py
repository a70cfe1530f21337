"""A bar below the cell of a notebook.

IPython is there where a kernel runs, and nothing else is needed: a bar is a display with a number, which every frontend
of Jupyter updates. A notebook that is saved or executed without a frontend keeps what the bar showed last.
"""

import html
from typing import Any


class NotebookBar:
    """A line with a bar; it is there from its first text on."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, label: str, share: float, text: str) -> None:
        """Replace what the bar shows.

        Args:
            share: How long the bar is, from 0 to 1.
        """
        data = {
            "text/plain": f"{label} {share:4.0%}  {text}",
            "text/html": (
                '<div style="font-family: var(--jp-code-font-family, monospace); white-space: pre-wrap">'
                f'{html.escape(label)} <progress value="{share:.3f}" max="1" style="vertical-align: middle">'
                f"</progress> {share:4.0%}  {html.escape(text)}</div>"
            ),
        }
        if self._handle is None:
            from IPython.display import display

            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
