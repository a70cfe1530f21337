"""Whether this process is the kernel of a notebook."""

import sys
from typing import Any


def is_here() -> bool:
    """Whether this process is the kernel of a notebook, or of another frontend of Jupyter."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
