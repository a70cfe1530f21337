"""Blocks of lines: whole lines whatever the block size, damaged files refused, the place in the file known."""

import bz2
import gzip
import os
import threading
from pathlib import Path

import pytest

from chicle_elastic.chunks.readers import text as text_module
from chicle_elastic.chunks.readers.text import line_blocks, shown
from chicle_elastic.errors import DataError
from tests.convert.inputs import write_text
from tests.timeouts import timeout_s

TEXT = b"".join(b"line %d\n" % number for number in range(2000))


@pytest.mark.parametrize("block_bytes", [1, 7, 4096, 1 << 20])
@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress])
@pytest.mark.parametrize("ending", [b"", b"the last line has no end"])
def test_blocks_are_whole_lines_and_nothing_is_lost(
    tmp_path: Path, block_bytes: int, compress: object, ending: bytes
) -> None:
    """Joined blocks are the text; each begins where the line number says, and ends at a line end."""
    text = TEXT[: 200 if block_bytes < 10 else None] + ending
    path = write_text(tmp_path, compress(text), "data")  # type: ignore[operator]
    blocks = list(line_blocks(path, block_bytes=block_bytes))
    assert b"".join(block.data for block in blocks) == text
    lines = 0
    for block in blocks:
        assert block.first_line == lines + 1
        lines += block.data.count(b"\n")
    assert all(block.data.endswith(b"\n") for block in blocks[:-1])
    assert blocks[-1].bytes_read == path.stat().st_size


def test_a_file_without_line_ends_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest line is bounded; the bound is lowered here so that the file can be small."""
    monkeypatch.setattr(text_module, "MAX_LINE_BYTES", 1000)
    path = write_text(tmp_path, b"short\n" + b"x" * 5000, "data")
    with pytest.raises(DataError, match="data:2: no line end within"):
        list(line_blocks(path, block_bytes=100))


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    """Its first bytes are looked at without taking them away; it has no position to show."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(gzip.compress(TEXT)))
    writer.start()
    blocks = list(line_blocks(pipe, block_bytes=1000))
    writer.join(timeout_s(10))
    assert b"".join(block.data for block in blocks) == TEXT
    assert {block.bytes_read for block in blocks} == {0}


def test_tokens_are_shown_printable_and_short() -> None:
    """An error message holds no control characters and no megabyte."""
    assert shown(b"\x00\xff") == r"'\x00\\xff'"
    assert len(shown("x" * 1000)) < 50
