"""Files for what the processes of a local cluster print."""

import os
from pathlib import Path

SHOWN_BYTES = 2000


def last_words(output: int) -> str:
    """The end of what a process printed into the file of a descriptor."""
    size_bytes = os.fstat(output).st_size
    content = os.pread(output, SHOWN_BYTES, max(0, size_bytes - SHOWN_BYTES))
    return content.decode(errors="replace").strip()


def open_output(name: str, output: Path | None) -> int:
    """Open a file for what a process prints; in memory where there is no path."""
    if output is None:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    output.parent.mkdir(parents=True, exist_ok=True)
    return os.open(output, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
