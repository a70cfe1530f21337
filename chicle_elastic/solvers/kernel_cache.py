"""Where compiled kernels are kept. Does not import numba, so that who asks for that place alone need not."""

import functools
import hashlib
from pathlib import Path

from chicle_elastic.settings import Settings
from chicle_elastic.waits import tell

errors: list[str] = []
"""Why kernels cannot be kept, as it was told; empty where they can."""


@functools.cache
def cache_dir() -> Path | None:
    """A folder for kernels compiled from exactly these sources; None where no folder can be written.

    numba compares a digest of the file that a kernel stands in, and of no other: it would take old machine code after
    a change in a file that the kernel's file imports.
    """
    sources = sorted((Path(__file__).parent / "kernels").glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    try:
        folder = Settings.from_environment().kernel_cache_dir() / digest[:16]
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        tell_not_kept(error)
        return None
    return folder


def is_cold() -> bool:
    """Whether no kernel was compiled here yet, so that the first fit will take seconds longer."""
    folder = cache_dir()
    return folder is None or next(folder.rglob("*.nbi"), None) is None


def tell_not_kept(error: Exception | str) -> None:
    """Tell, once per process, that the next process has to compile its kernels again, and why."""
    if not errors:
        errors.append(str(error))
        tell(
            f"compiled kernels cannot be kept on disk ({error}): the fit goes on, and the next process compiles them "
            "again (some 10 s); set CHICLE_CACHE_DIR to a folder that can be written and has room"
        )
