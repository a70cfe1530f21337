"""svmlight / libsvm text: `label index:value index:value ...  # comment`, one sample per line.

Two parsers with one meaning. `parse_lines` below reads line by line and defines what is accepted; `svmlight_fast` reads
a whole block with NumPy and gives up (None) at anything unusual, so that the slow one decides and names the line.
A test feeds both the same mutated input.

Comments and `qid:` fields are skipped: Chicle does not rank. Multi-label files are refused. Indices must ascend
strictly within a line, as the format demands.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chicle_elastic.chunks.readers.base import Block, Origin, ReadOptions
from chicle_elastic.chunks.readers.svmlight_fast import Samples, parse_block
from chicle_elastic.chunks.readers.text import LineBlock, line_blocks, number_or_none, shown
from chicle_elastic.chunks.views import CsrRows
from chicle_elastic.errors import DataError, UsageError

LARGEST_INDEX = 2**31 - 2  # without a stated number of features a larger index is taken for a damaged one

_COMMENT = re.compile(rb"#[^\n]*")
_QUERY_ID = re.compile(rb"(?<=\S)[^\S\n]+qid:\S*")  # behind something in its line: the label is never left out
_ZERO_INDEX = re.compile(rb"\s0+:")


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Which indices a file may use: `first` (0 or 1) to `last`, both included."""

    first: int
    last: int

    @classmethod
    def of(cls, *, zero_based: bool, num_features: int | None) -> "IndexRange":
        """The range for a stated number of features, or for an unknown one (None)."""
        first = 0 if zero_based else 1
        return cls(first, LARGEST_INDEX + first if num_features is None else num_features - 1 + first)


def read_svmlight(path: Path, options: ReadOptions) -> Iterator[Block]:
    """Read an svmlight file (plain, gzip, bzip2). Raises DataError when a line is not of the format; the message has
    file, line, token and what to do."""
    zero_based = options.zero_based
    if zero_based is None:
        zero_based = has_zero_index(path, block_bytes=options.block_bytes)
    allowed = IndexRange.of(zero_based=zero_based, num_features=options.num_features)
    for lines in line_blocks(path, block_bytes=options.block_bytes):
        samples = parse(lines, allowed, path)
        if not len(samples.labels):
            continue
        num_features = options.num_features
        if num_features is None:
            num_features = int(samples.indices.max()) + 1 if len(samples.indices) else 0
        yield Block(
            rows=CsrRows(samples.indptr, samples.indices, samples.values, num_features),
            targets=samples.labels,
            origin=Origin(
                path=path,
                unit="line",
                numbers=samples.line_numbers,
                column_word="index",
                first_column=allowed.first,
            ),
            bytes_read=lines.bytes_read,
        )


def has_zero_index(path: Path, *, block_bytes: int) -> bool:
    """Look whether any line of the file has a feature of index 0 (it is then numbered from 0). Raises UsageError when
    `path` is a pipe or the like, that cannot be read twice."""
    if not path.is_file():
        raise UsageError(f"{path}: finding out the first index needs a file that can be read twice; pass --zero-based")
    blocks = line_blocks(path, block_bytes=block_bytes)
    return any(_ZERO_INDEX.search(_COMMENT.sub(b"", block.data)) for block in blocks)


def parse_lines(lines: LineBlock, allowed: IndexRange, path: Path) -> Samples:
    """Parse line by line: the definition of the format, and the one that names what is wrong."""
    labels, counts, indices, values, numbers = [], [], [], [], []
    for number, line in lines.lines():
        tokens = line.partition(b"#")[0].split()
        if not tokens:
            continue
        labels.append(_label(tokens[0], where=f"{path}:{number}"))
        features = [token for token in tokens[1:] if not token.startswith(b"qid:")]
        previous = -1
        for token in features:
            index, value = _feature(token, allowed, where=f"{path}:{number}")
            if index <= previous:
                fault = "appears twice" if index == previous else f"follows index {previous}"
                raise DataError(
                    f"{path}:{number}: index {index} {fault}; indices must ascend within a line: "
                    "sort them, and merge those that repeat"
                )
            previous = index
            indices.append(index - allowed.first)
            values.append(value)
        counts.append(len(features))
        numbers.append(number)
    return Samples(
        labels=np.array(labels, dtype=np.float64),
        indptr=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
        indices=np.array(indices, dtype=np.int64),
        values=np.array(values, dtype=np.float64),
        line_numbers=np.array(numbers, dtype=np.int64),
    )


def parse(lines: LineBlock, allowed: IndexRange, path: Path) -> Samples:
    """Parse a block, the fast way where that is sure of it."""
    data = without_extras(lines.data)
    fast = parse_block(data, first_line=lines.first_line, first=allowed.first, last=allowed.last)
    return parse_lines(lines, allowed, path) if fast is None else fast


def without_extras(data: bytes) -> bytes:
    """The text without comments and query ids; no line is lost or joined."""
    if b"#" in data:
        data = _COMMENT.sub(b"", data)
    if b"qid:" in data:
        data = _QUERY_ID.sub(b"", data)
    return data


def _label(token: bytes, *, where: str) -> float:
    label = number_or_none(token.decode("latin-1"))
    if label is not None:
        return label
    if b":" in token:
        advice = "the line has no label: put one before the first index:value"
    elif b"," in token:
        advice = "data of several labels per sample is not supported: keep one, or use one file per label"
    else:
        advice = "replace it by a number"
    raise DataError(f"{where}: the label {shown(token)} is not a number; {advice}")


def _feature(token: bytes, allowed: IndexRange, *, where: str) -> tuple[int, float]:
    index_text, colon, value_text = token.partition(b":")
    value = number_or_none(value_text.decode("latin-1"))
    if not colon or not index_text.isdigit() or value is None:
        raise DataError(
            f"{where}: {shown(token)} is not index:value (a whole number, a colon, a number); correct the line"
        )
    index = int(index_text) if len(index_text) <= 18 else allowed.last + 1
    if index < allowed.first:
        raise DataError(
            f"{where}: index 0 in {shown(token)}, but features are numbered from 1; "
            "pass --zero-based yes if this file counts from 0 (or auto)"
        )
    if index > allowed.last:
        raise DataError(
            f"{where}: index {shown(index_text)} is out of range, the last one allowed is {allowed.last}; "
            "correct the line, or pass a larger --num-features"
        )
    return index, value
