"""Runs the cells of a notebook in a kernel of Jupyter, as a user does, and says what each cell shows.

    python -m tests.notebooks < cells.json > outputs.json       what `run_cells` starts

In a process of its own: the client's threads and sockets stay open until that ends, and the watch over leaks would
find them.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.programs import run_python
from tests.timeouts import timeout_s

TIMEOUT_S = 60.0


def run_cells(folder: Path, *cells: str, **environment: str) -> list[list[dict[str, Any]]]:
    """Run cells one after the other, in one kernel.

    Args:
        folder: Where Jupyter may write what it otherwise writes in the user's home.
        cells: Their texts.
        environment: More variables for the kernel.

    Returns:
        The outputs of each cell in Jupyter's form: a stream has "name" and "text", anything else "data" by MIME type.
    """
    run = run_python(
        "-m",
        "tests.notebooks",
        seconds=TIMEOUT_S,
        cwd=Path(__file__).parents[1],
        text=json.dumps(cells),
        **dict.fromkeys(("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"), str(folder)),
        **environment,
    )
    outputs: list[list[dict[str, Any]]] = json.loads(run.stdout)
    return outputs


def main() -> None:
    """Read cells, run them, write outputs; a cell that raises ends this process with its traceback."""
    import nbformat
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(text) for text in json.load(sys.stdin)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    # The kernel of this very interpreter: an installed "python3" may be another one.
    with tempfile.TemporaryDirectory() as sockets:  # the kernel leaves them where they are, and a path has 107 bytes
        manager = AsyncKernelManager(transport="ipc", ip=f"{sockets}/k")
        manager.kernel_spec_manager.ensure_native_kernel = True
        NotebookClient(notebook, km=manager, timeout=timeout_s(TIMEOUT_S)).execute()
    json.dump([cell.outputs for cell in cells], sys.stdout)


if __name__ == "__main__":
    main()
