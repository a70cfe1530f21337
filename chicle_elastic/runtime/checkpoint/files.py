"""Files that exist completely or not at all, with size and checksum, for checkpoints."""

import io
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from chicle_elastic.chunks.json_fields import Fields
from chicle_elastic.chunks.places import Place, UrlPath
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError

BLOCK_BYTES = 1 << 20
DAMAGED = "it is damaged"


def write_file(path: Place, content: bytes | memoryview | Array) -> dict[str, Any]:
    """Write a file of these bytes, or of an array; it exists under its name and on the disk completely, or not at all.
    Returns its size and checksum, for the manifest. Raises OSError when the disk does not take it,
    UnreachablePlaceError when a URL does not take it."""
    if isinstance(path, UrlPath):
        return _upload(path, content)
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("w+b") as file:
            if isinstance(content, np.ndarray):
                np.lib.format.write_array(file, content, allow_pickle=False)
            else:
                file.write(content)
            file.flush()
            file.seek(0)
            crc = size = 0
            while block := file.read(BLOCK_BYTES):
                crc, size = zlib.crc32(block, crc), size + len(block)
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)  # a full disk needs the space of half a file
        raise
    return {"bytes": size, "crc32": f"{crc:08x}"}


def write_json(path: Place, content: Any) -> dict[str, Any]:
    """As `write_file`."""
    return write_file(path, json.dumps(content, separators=(",", ":")).encode())


def read_array(path: Place, entry: Mapping[str, Any]) -> Array:
    """The array in a file that the manifest lists. Raises DataError when it is not what the manifest says."""
    content = read_bytes(path, entry)
    try:
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # numpy parses the header as Python, whose errors are many
        raise DataError(f"{path}: it is not an array ({error}); {DAMAGED}") from error


def read_bytes(path: Place, entry: Mapping[str, Any] | None) -> bytes:
    """The content of a file. Raises DataError when it is not what the manifest says, UnreachablePlaceError when a URL
    does not answer."""
    if entry is None:
        raise DataError(f"{path.parent}: its manifest does not list {path.name}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror or error})") from error
    found = {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    if found != entry:
        raise DataError(
            f"{path}: it has {found['bytes']} bytes with checksum {found['crc32']}, but the manifest says "
            f"{entry.get('bytes')} with {entry.get('crc32')}; {DAMAGED}"
        )
    return content


def parse_entries(path: Place, content: Any) -> dict[str, dict[str, Any]]:
    """Check what is said to be size and checksum of files, by name. Raises DataError when it is something else."""
    for name, entry in Fields(content, str(path), "files: ", advice=DAMAGED).content.items():
        fields = Fields(entry, str(path), f"files: {name}: ", advice=DAMAGED)
        fields.number("bytes", at_least=0)
        fields.checksum("crc32")
        if name != os.path.basename(name) or name in ("", ".", ".."):
            raise DataError(f"{path}: files: {name!r} is no file of the folder itself; {DAMAGED}")
    return dict(content)


def parse_json(path: Place, content: bytes) -> Any:
    """JSON values from bytes. Raises DataError when they are not JSON; the message names the file."""
    try:
        return json.loads(content)
    except ValueError as error:
        raise DataError(f"{path}: it is not JSON ({error}); {DAMAGED}") from error


def _upload(path: UrlPath, content: bytes | memoryview | Array) -> dict[str, Any]:
    if isinstance(content, np.ndarray):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, content, allow_pickle=False)
        content = buffer.getvalue()
    content = bytes(content)
    path.write_bytes(content)
    return {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
