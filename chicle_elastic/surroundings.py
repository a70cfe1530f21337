"""Makes up for what a process lacks at its start: standard streams, an encoding for what it prints, a working folder.

Supervisors close standard streams, containers have the locale "C", and clean-ups remove the folder that a job runs in.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chicle_elastic.errors import UsageError

FOLDER_IS_GONE = "the working directory is gone: change to a folder that exists (cd, os.chdir) and try again"


def hold_descriptors() -> None:
    """Open /dev/null in the place of each standard descriptor that is closed. The next socket would get that number
    otherwise. A child process then loses the socket, and text that a library prints goes into it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def prepare_command() -> None:
    """Let the process of a command print whatever it has to: no closed stream and no encoding ends it. Characters that
    stdout cannot encode are escaped, as those of stderr always are."""
    hold_descriptors()
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the whole process
    if sys.stderr is None:  # print would take stdout in its place
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def write(text: str, stream: Any) -> None:
    """Write text for a user's program, which has its own stream: perhaps None, perhaps of few characters."""
    if stream is not None:
        stream.write(encodable(text, stream))
        stream.flush()


def encodable(text: str, stream: Any) -> str:
    """Escape the characters of a text that a stream cannot encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def is_folder_gone() -> bool:
    """Whether the working directory was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def absolute(path: Path) -> Path:
    """Make a path independent of the working directory. Raises UsageError when the path is relative, and the working
    directory is gone."""
    try:
        return path.absolute()
    except FileNotFoundError as error:
        raise UsageError(f"{path}: {FOLDER_IS_GONE}, or name an absolute path") from error


def require_folder(program: str) -> None:
    """End the process of a command whose working directory is gone, with a line: torch would end it with none. Raises
    SystemExit when the working directory is gone."""
    if is_folder_gone():
        raise SystemExit(f"{program}: {FOLDER_IS_GONE}")


@contextlib.contextmanager
def in_some_folder() -> Iterator[None]:
    """Within this, the working directory exists: "/" in place of one that is gone. Libraries ask for it while they are
    imported, numba also when it compiles, and torch ends the process without one."""
    if not is_folder_gone():
        yield
        return
    gone = os.open(".", os.O_RDONLY)
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(gone)
        os.close(gone)
