"""Where compiled kernels are kept. Does not import numba, so that who asks for that place alone need not."""

import functools
import hashlib
from pathlib import Path

from chicle_elastic.settings import Settings


@functools.cache
def cache_dir() -> Path:
    """A folder for kernels compiled from exactly these sources.

    numba compares the time and size of the file that a kernel stands in, and of no other: it would take old machine
    code after a change in a file that the kernel's file imports, or after an upgrade (wheels carry a fixed time).
    """
    sources = sorted((Path(__file__).parent / "kernels").glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    folder = Settings.from_environment().kernel_cache_dir() / digest[:16]
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def is_cold() -> bool:
    """Whether no kernel was compiled here yet, so that the first fit will take seconds longer."""
    return next(cache_dir().rglob("*.nbi"), None) is None
