"""Text files as blocks of whole lines: plain, gzip, bzip2, xz or zip, told by their first bytes and not their names."""

import bz2
import gzip
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import IO, cast

from chicle_elastic.chunks.readers.base import BLOCK_BYTES
from chicle_elastic.errors import DataError

MAX_LINE_BYTES = 64 << 20
"""A longer line is taken for a file that is not text; without a bound one such file would fill the memory."""

NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf|infinity)", re.ASCII | re.IGNORECASE)
"""What counts as a number in text. Python's `float` takes more ("1_0", digits of other scripts). NaN and infinity are
numbers here so that they get an error of their own (see `checks`)."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Some consecutive whole lines."""

    data: bytes  # the lines; only the last line of a file may lack its newline
    first_line: int  # number of the first of them, from 1
    bytes_read: int  # bytes of the file consumed so far, compressed where the file is

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(line number, line without its newline) of each line; what follows the last newline counts if not empty."""
        lines = self.data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        yield from enumerate(lines, start=self.first_line)


def line_blocks(path: Path, *, block_bytes: int = BLOCK_BYTES) -> Iterator[LineBlock]:
    """Read `path` in blocks of about `block_bytes` of whole lines. Raises DataError when the compressed data is damaged
    or cut short, a line is longer than `MAX_LINE_BYTES`, or the text is UTF-16, or has line ends of CR alone, OSError
    when the file cannot be opened or read."""
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        stream = _decompressed(raw, path, stack)
        line = 1
        pending: list[bytes] = []  # the beginning of a line whose end is not read yet
        pending_bytes = 0
        while piece := _read(stream, block_bytes, path=path, line=line):
            if line == 1 and not pending:
                piece = _without_byte_order_mark(piece, path)
                if b"\r" in piece[:-1] and b"\n" not in piece:
                    raise DataError(f"{path}: lines end in CR alone; save it with LF (tr '\\r' '\\n')")
            cut = piece.rfind(b"\n") + 1
            if cut:
                data = b"".join([*pending, piece[:cut]])
                yield LineBlock(data, line, _position(raw))
                line += data.count(b"\n")
                pending, pending_bytes = [], 0
            pending.append(piece[cut:])
            pending_bytes += len(piece) - cut
            if pending_bytes > MAX_LINE_BYTES:
                raise DataError(
                    f"{path}:{line}: no line end within {MAX_LINE_BYTES >> 20} MiB; this does not look like a text "
                    "file of one sample per line: check the file, or name its format with --format"
                )
        if data := b"".join(pending):
            yield LineBlock(data, line, _position(raw))


def number_or_none(token: str) -> float | None:
    """The number that `token` spells, exactly as the C parsers read it; None if it is none."""
    return float(token) if NUMBER.fullmatch(token) else None


def shown(token: str | bytes) -> str:
    """`token` fit for an error message: quoted, printable, not longer than a few words."""
    text = token.decode("utf-8", errors="backslashreplace") if isinstance(token, bytes) else token
    return repr(text if len(text) <= 40 else text[:37] + "...")


def zip_members(archive: zipfile.ZipFile) -> list[str]:
    """Names of the files in a zip archive, folders and what macOS adds left out."""
    return [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]


def _decompressed(raw: BufferedReader, path: Path, stack: ExitStack) -> BufferedIOBase:
    # peek leaves the bytes in place, so that a pipe works as well as a file.
    magic = raw.peek(6)[:6]
    if magic[:2] == b"\x1f\x8b":
        return stack.enter_context(gzip.GzipFile(fileobj=raw))
    if magic[:3] == b"BZh":
        return stack.enter_context(bz2.BZ2File(raw))
    if magic == b"\xfd7zXZ\0":
        return stack.enter_context(lzma.LZMAFile(raw))
    if magic[:4] == b"PK\x03\x04":
        return cast(BufferedIOBase, _zip_member(raw, path, stack))
    return raw


def _zip_member(raw: BufferedReader, path: Path, stack: ExitStack) -> IO[bytes]:
    """The one file in a zip archive. Raises DataError when there are several, or the archive is damaged or
    encrypted."""
    try:
        archive = stack.enter_context(zipfile.ZipFile(raw))
        names = zip_members(archive)
        if len(names) == 1:
            return stack.enter_context(archive.open(names[0]))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise DataError(f"{path}: the zip archive cannot be read ({error}); unpack it, and name its files") from error
    if "xl/workbook.xml" in names:
        raise DataError(f"{path}: is a workbook of Excel; save the sheet as CSV")
    raise DataError(f"{path}: a zip archive of {len(names)} files, {names[:5]}; unpack it, and name the files")


def _read(stream: BufferedIOBase, size: int, *, path: Path, line: int) -> bytes:
    pieces: list[bytes] = []
    missing = size
    try:
        # Not read(size): that is a loop in C over the reads of a pipe, and Ctrl-C has to wait for its end.
        while missing and (piece := stream.read1(missing)):
            pieces.append(piece)
            missing -= len(piece)
    except (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        # gzip and bz2 report bad data as an OSError without a number; one with a number is the disk's.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        whole = line - 1 + sum(piece.count(b"\n") for piece in pieces)
        raise DataError(
            f"{path}: the compressed data is damaged or cut short after line {whole} ({error}); "
            "fetch or compress the file again"
        ) from error
    return b"".join(pieces)


def _without_byte_order_mark(piece: bytes, path: Path) -> bytes:
    if piece.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}: the text is UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)")
    return piece.removeprefix(b"\xef\xbb\xbf")


def _position(raw: BufferedReader) -> int:
    try:
        return raw.tell()
    except OSError:  # a pipe has no position; only the progress bar asks
        return 0
