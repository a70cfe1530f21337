"""What IPython does with a cell: its text is run in `__main__`, and Python is told where to find that text."""

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def notebook(*cells: str) -> Iterator[dict[str, Any]]:
    """Run cells; yields the names that there are then, and takes them away again afterwards."""
    names = vars(sys.modules["__main__"])
    before = dict(names)
    try:
        for number, text in enumerate(cells):
            filename = f"<ipython-input-{number}>"
            linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
            exec(compile(text, filename, "exec"), names)
        yield names
    finally:
        for name in names.keys() - before.keys():
            del names[name]
        names.update(before)
