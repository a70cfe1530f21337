"""Places of files: a folder of this machine, or a URL of a file system that fsspec knows (s3://, gs://, ...).

A `UrlPath` has those methods of `pathlib.Path` that checkpoints and chunk folders need, so they handle both alike. An
object store has no rename. There a file appears under its name by one request, completely or not at all; other file
systems of fsspec may show half a file, whose checksum is then wrong. Both are safe: only the manifest, written last
and with a checksum of its own, makes a checkpoint.

`file:///shared/job` is the folder /shared/job and needs no package. fsspec, and the package of the scheme, are imported
where a URL is used. Credentials and endpoints come from where these packages look: environment variables
(AWS_ENDPOINT_URL, for example), files, an instance's role, fsspec's own settings. No listing is cached: other nodes
write to the same place.
"""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from chicle_elastic.chunks.target_folder import flush_folder
from chicle_elastic.errors import MissingExtraError, UnreachablePlaceError, UsageError
from chicle_elastic.surroundings import absolute

URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
LOCAL_SCHEMES = ("file", "local")
PROCESS_SCHEMES = ("memory",)  # schemes of places that only one process sees
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "memory"})
"""Schemes without folders. To make one there would make the bucket, which is for its owner to do."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UrlPath:
    """A file or folder at a URL. Every method raises `UnreachablePlaceError` where the place does not answer or
    refuses."""

    url: str  # as the user gave it, with what was joined to it
    path: str
    file_system: Any = field(compare=False, repr=False)  # fsspec's

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "UrlPath":
        return UrlPath(f"{self.url}/{name}", f"{self.path}/{name}", self.file_system)

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> "UrlPath":
        """The folder of it."""
        return UrlPath(self.url.rpartition("/")[0], self.path.rpartition("/")[0], self.file_system)

    def exists(self) -> bool:
        """Whether there is such a file."""
        return bool(self._ask(lambda: self.file_system.exists(self.path), "cannot be looked for"))

    def is_dir(self) -> bool:
        """Whether there is such a folder; in an object store, whether a name begins with it."""
        return bool(self._ask(lambda: self.file_system.isdir(self.path), "cannot be looked for"))

    def sizes(self) -> dict[str, int]:
        """Sizes of the files in this folder in bytes, by name; none where it does not exist."""
        return {name: int(entry["size"]) for name, entry in self._entries("file")}

    def folders(self) -> list["UrlPath"]:
        """The folders in this folder; none where it does not exist."""
        return [self / name for name, _ in self._entries("directory")]

    def _entries(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        try:
            entries = self._ask(lambda: self.file_system.ls(self.path, detail=True), "cannot be listed")
        except FileNotFoundError:
            return []
        return [(entry["name"].rstrip("/").rpartition("/")[2], entry) for entry in entries if entry["type"] == kind]

    def read_bytes(self, start: int | None = None, end: int | None = None) -> bytes:
        """Content of the file, from byte `start` to byte `end`, by one request. Raises FileNotFoundError when there is
        none."""
        return bytes(self._ask(lambda: self.file_system.cat_file(self.path, start=start, end=end), "cannot be read"))

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return it as text. Raises FileNotFoundError when there is none, UnicodeDecodeError when it is no text."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: bytes) -> None:
        """Write the file; in an object store by one request, or by an upload that counts when it is complete."""

        def write() -> None:
            if URL.fullmatch(self.url)[1].lower() not in OBJECT_STORES:  # type: ignore[index]
                self.file_system.makedirs(self.parent.path, exist_ok=True)
            self.file_system.pipe_file(self.path, content)

        try:
            self._ask(write, "cannot be written")
        except FileNotFoundError as error:
            raise UnreachablePlaceError(f"{self.url} cannot be written: there is no such bucket ({error})") from error

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file. Raises FileNotFoundError when there is none, where that is not `missing_ok`; an object store
        does not say so."""
        try:
            self._ask(lambda: self.file_system.rm_file(self.path), "cannot be removed")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove(self) -> None:
        """Remove the folder and all that it holds."""
        try:
            self._ask(lambda: self.file_system.rm(self.path, recursive=True), "cannot be removed")
        except FileNotFoundError:
            return

    def _ask(self, call: Callable[[], T], what: str) -> T:
        """Call fsspec; each file system raises errors of its own."""
        try:
            return call()
        except FileNotFoundError:
            raise
        except Exception as error:
            raise UnreachablePlaceError(f"{self.url} {what}: {type(error).__name__}: {error}") from error


Place = Path | UrlPath  # where files are


def is_url(text: str) -> bool:
    """Whether a text is a URL, and not a path of this machine."""
    return URL.fullmatch(text) is not None


def absolute_place(text: str) -> str:
    """A path made absolute, so that it means the same from every folder; a URL as it is, without slashes at its end."""
    found = URL.fullmatch(text)
    if found is None:
        return str(absolute(Path(text)))
    if found[1].lower() in LOCAL_SCHEMES:
        return str(_local(text, found[2]))
    return text.rstrip("/")


def place_of(text: str, *, purpose: str) -> Place:
    """Return the place that a path or URL names, now and after a change of the working directory. Raises
    MissingExtraError when a package for its scheme is not installed, UsageError when there is no such scheme, or its
    package refuses the URL."""
    found = URL.fullmatch(text)
    if found is None:
        return absolute(Path(text))
    if found[1].lower() in LOCAL_SCHEMES:
        return _local(text, found[2])
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtraError.for_package("fsspec", extra="url", purpose=f"{purpose} at {text}") from error
    url = text.rstrip("/")
    try:
        file_system, path = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except ImportError as error:
        raise MissingExtraError(f"{purpose} at {text} needs one more package, on every node: {error}") from error
    except Exception as error:
        raise UsageError(f"{purpose} cannot be at {text}: {error}; write s3://BUCKET/FOLDER, say, or a path") from error
    return UrlPath(url, str(path).rstrip("/"), file_system)


def is_of_one_process(text: str) -> bool:
    """Whether only one process sees what is at this place."""
    found = URL.fullmatch(text)
    return found is not None and found[1].lower() in PROCESS_SCHEMES


def require_writable(place: Place, *, who: str) -> None:
    """Write a small file to a URL and remove it: what is wrong shows before hours of training, and not after. A folder
    of this machine is not tried: a job may begin before the disk is there. Raises UnreachablePlaceError when it does
    not answer, does not exist, or the node may not write there."""
    if isinstance(place, Path):
        return
    probe = place / f".chicle-may-write-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        probe.write_bytes(b"")
        probe.unlink(missing_ok=True)
    except UnreachablePlaceError as error:
        raise UnreachablePlaceError(
            f"{who} cannot write to {place} ({error}); check from this node that the bucket exists, that its "
            "credentials may write and delete there, and that the endpoint can be reached"
        ) from error


def folders_in(place: Place) -> list[Place]:
    """The folders in a folder; none where it does not exist."""
    if isinstance(place, UrlPath):
        return list(place.folders())
    return [path for path in place.iterdir() if path.is_dir()] if place.is_dir() else []


def make_folder(place: Place) -> None:
    """Make a folder and those above it; a URL needs none."""
    if isinstance(place, Path):
        place.mkdir(parents=True, exist_ok=True)


def flush_place(place: Place) -> None:
    """Bring the names in a folder to the disk; what is at a URL is there when the request has ended."""
    if isinstance(place, Path):
        flush_folder(place)


def remove_folder(place: Place) -> None:
    """Remove a folder and all that it holds, as far as possible."""
    if isinstance(place, UrlPath):
        place.remove()
    else:
        shutil.rmtree(place, ignore_errors=True)


def _local(text: str, path: str) -> Path:
    if not path.startswith("/"):
        raise UsageError(f"{text} has no absolute path; write file:///FOLDER, or the path alone")
    return Path(path)
