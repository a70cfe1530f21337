"""A folder that appears all at once: written under a temporary name beside its target, then renamed.

Whatever ends the writing, `clean_up` leaves the old target or the new one and nothing else. Only a process that is
killed cannot clean up: it leaves `.NAME.xxxxxxxx.partial` (or, in the instant between two renames, the old folder as
`.NAME.xxxxxxxx.replaced`), which may be deleted or renamed by hand.
"""

import contextlib
import errno
import os
import secrets
import shutil
from pathlib import Path

from chicle_elastic.chunks.manifest import CHUNK_PREFIX, FORMAT, MANIFEST_NAME
from chicle_elastic.errors import CapacityError, UsageError


class TargetFolder:
    """The place where a chunk folder will be. Raises UsageError when something is there that may not be replaced, or
    there is no parent.

    Args:
        overwrite: Whether a chunk folder that is there may be replaced. Anything else is never touched.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.path = path
        self.place = Path(os.path.abspath(path))  # the working directory may change meanwhile
        self._overwrite = overwrite
        token = secrets.token_hex(4)
        self.temporary = self.place.with_name(f".{self.place.name}.{token}.partial")
        self._replaced = self.place.with_name(f".{self.place.name}.{token}.replaced")
        if not self.place.parent.is_dir():
            raise UsageError(f"{path} cannot be written: there is no folder {self.place.parent}; create it first")
        self._require_free()

    def create(self) -> None:
        """Make the temporary folder."""
        self.temporary.mkdir()

    def commit(self) -> None:
        """Give the temporary folder its name; what it holds is on disk before, and the name is after. Raises UsageError
        when something has appeared at the target that may not be replaced."""
        _flush_files(self.temporary)
        flush_folder(self.temporary)
        self._require_free()
        if os.path.lexists(self.place):
            os.rename(self.place, self._replaced)
        try:
            os.rename(self.temporary, self.place)
        except OSError as error:
            if os.path.lexists(self.place):
                raise UsageError(f"{self.path} has appeared while it was written; it is left as it is") from error
            raise
        flush_folder(self.place.parent)

    def clean_up(self) -> None:
        """Leave either the old target or the new one, and nothing else; to be called in the end, whatever happened."""
        if os.path.lexists(self._replaced):
            if os.path.lexists(self.place):
                shutil.rmtree(self._replaced)
            else:
                os.rename(self._replaced, self.place)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.temporary)

    def _require_free(self) -> None:
        if not os.path.lexists(self.place):
            return
        if not self._overwrite:
            raise UsageError(f"{self.path} exists already; choose another name, or pass overwrite=True (--overwrite)")
        reason = _why_no_chunk_folder(self.place)
        if reason is not None:
            raise UsageError(
                f"{self.path} is not replaced, because {reason}; only chunk folders are overwritten: choose another "
                "name, or move it away"
            )


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Write a file. Raises CapacityError when the disk is full, OSError for anything else that the system refuses."""
    try:
        with path.open("wb") as file:
            file.write(content)
    except OSError as error:
        _require_room(error, path)
        raise


def _require_room(error: OSError, path: Path) -> None:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free_bytes = shutil.disk_usage(path.parent).free
        raise CapacityError(
            f"{path} could not be written ({error.strerror}; {free_bytes} bytes are free there); make room, or write "
            "to another disk"
        ) from error


def _why_no_chunk_folder(path: Path) -> str | None:
    if path.is_symlink() or not path.is_dir():
        return "it is no folder"
    try:
        text = (path / MANIFEST_NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"it has no {MANIFEST_NAME}"
    if FORMAT not in text:
        return f"its {MANIFEST_NAME} is not that of a chunk folder"
    others = sorted(name for name in os.listdir(path) if name != MANIFEST_NAME and not name.startswith(CHUNK_PREFIX))
    return f"it holds {others[0]!r}, which is no part of a chunk folder" if others else None


def _flush_files(folder: Path) -> None:
    """Bring the content of all files in a folder to disk. The system is told of all files first, so that it writes many
    at once. Threads that flush side by side are no faster by much, and Ctrl-C in `ThreadPoolExecutor.submit` can leave
    a lock behind for which the process waits forever."""
    paths = sorted(folder.iterdir())
    if hasattr(os, "posix_fadvise"):
        for path in paths:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for path in paths:
        _flush_file(path)


def _flush_file(path: Path) -> None:
    with path.open("rb+") as file:
        try:
            os.fsync(file.fileno())
        except OSError as error:
            _require_room(error, path)
            raise


def flush_folder(path: Path) -> None:
    """Bring the names in a folder to disk, so that they survive a crash; Windows has no way to, and needs none."""
    if os.name == "posix":
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
