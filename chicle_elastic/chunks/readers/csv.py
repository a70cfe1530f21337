"""CSV text: the label, then the features; one sample per line.

`numpy.loadtxt` parses a block of lines. Where it refuses, or numbers are quoted or lines blank, `parse_lines` reads the
block line by line, decides, and names what is wrong. Labels are numbers or text, as the first one of the file says.
Blank lines are skipped. Fields may be quoted, but not over several lines.
"""

import contextlib
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chicle_elastic.chunks.readers.base import Block, Origin, ReadOptions
from chicle_elastic.chunks.readers.text import LineBlock, line_blocks, number_or_none, shown
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, UsageError

_MISSING = {"", "na", "n/a", "null", "none", "?", "-"}


@dataclass(frozen=True, slots=True)
class Layout:
    """What the first lines of a file say about all of them.

    Attributes:
        delimiter: One character.
        num_columns: Fields of every line, the label included.
        has_text_labels: Whether the labels are text.
        line: Line that these facts were taken from.
        names: Names of the features from the header line, or nothing.
    """

    delimiter: str
    num_columns: int
    has_text_labels: bool
    line: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Samples:
    """Parsed lines.

    Attributes:
        features: ndarray of shape (num_rows, num_columns - 1), float64.
        labels: ndarray of shape (num_rows,), float64 or str.
        line_numbers: Line of every row.
    """

    features: Array
    labels: Array
    line_numbers: range | npt.NDArray[np.int64]


def read_csv(path: Path, options: ReadOptions) -> Iterator[Block]:
    """Read a CSV file (plain, gzip, bzip2).

    Raises:
        DataError: A line has a missing or extra field, or one that is not a number; the message has file, line, field.
    """
    delimiter = options.delimiter or ("\t" if ".tsv" in path.suffixes else ",")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise UsageError(f"the delimiter {delimiter!r} is not one character that can separate fields; pass --delimiter")
    blocks = line_blocks(path, block_bytes=options.block_bytes)
    beginning = _begin(blocks, path, delimiter=delimiter, header=options.header)
    if beginning is None:
        return
    layout, first_block = beginning
    for lines in chain([first_block], blocks):
        samples = _parse_fast(lines, layout) or parse_lines(lines, layout, path)
        if not len(samples.labels):
            continue
        yield Block(
            rows=samples.features,
            targets=samples.labels,
            origin=Origin(
                path=path, unit="line", numbers=samples.line_numbers, first_column=2, column_names=layout.names
            ),
            bytes_read=lines.bytes_read,
        )


def parse_lines(lines: LineBlock, layout: Layout, path: Path) -> Samples:
    """Parse line by line: the definition of the format, and the one that names what is wrong."""
    features: list[list[float]] = []
    labels: list[str | float] = []
    numbers: list[int] = []
    for number, line in lines.lines():
        where = f"{path}:{number}"
        fields = _fields(line, layout.delimiter, where=where)
        if fields is None:
            continue
        if len(fields) != layout.num_columns:
            raise DataError(
                f"{where}: {len(fields)} fields, but line {layout.line} has {layout.num_columns}; a field is "
                f"{'missing' if len(fields) < layout.num_columns else 'too many'} (delimiter {layout.delimiter!r}): "
                "correct the line"
            )
        labels.append(_label(fields[0].strip(), layout, where=where))
        features.append(_features(fields, layout, where=where))
        numbers.append(number)
    return Samples(
        features=np.array(features, dtype=np.float64).reshape(len(labels), layout.num_columns - 1),
        labels=np.array(labels, dtype=np.str_ if layout.has_text_labels else np.float64),
        line_numbers=np.array(numbers, dtype=np.int64),
    )


def _begin(
    blocks: Iterator[LineBlock], path: Path, *, delimiter: str, header: bool | None
) -> tuple[Layout, LineBlock] | None:
    """The layout of the file, and the rest of the block from the first sample on; None where there is no sample.

    Takes as many blocks as the header and the first sample fill: a header of many columns may fill one by itself.
    """
    names: tuple[str, ...] = ()
    may_be_header = header is not False
    for lines in blocks:
        position = 0
        for number, line in lines.lines():
            where = f"{path}:{number}"
            fields = _fields(line, delimiter, where=where)
            fields = fields and [field.strip() for field in fields]
            if fields is not None and len(fields) < 2:
                raise DataError(
                    f"{where}: one field only, {shown(line)}; a line is a label and at least one feature, separated by "
                    f"{delimiter!r}: pass the --delimiter of this file"
                )
            if fields is not None and may_be_header:
                may_be_header = False
                if header or _is_header(fields):
                    names, fields = tuple(fields[1:]), None
            if fields is None:
                position += len(line) + 1
                continue
            layout = Layout(
                delimiter=delimiter,
                num_columns=len(fields),
                has_text_labels=number_or_none(fields[0]) is None,
                line=number,
                names=names if len(names) == len(fields) - 1 else (),
            )
            return layout, LineBlock(lines.data[position:], number, lines.bytes_read)
    return None


def _parse_fast(lines: LineBlock, layout: Layout) -> Samples | None:
    """The samples that `parse_lines` reads, by `numpy.loadtxt`; None for a block that only `parse_lines` can judge."""
    data = lines.data
    if (b'"' in data and not layout.has_text_labels) or data.count(b"\r") != data.count(b"\r\n"):
        return None
    labels: list[str] = []
    try:
        rows = data.decode("utf-8").removesuffix("\n").split("\n")
        if layout.has_text_labels:
            cut = [row.partition(layout.delimiter) for row in rows]
            labels, rows = [_bare(label) for label, _, _ in cut], [rest for _, _, rest in cut]
        # Only ASCII: with other characters loadtxt knows more blanks than the definition does.
        if not (all(labels) and all(map(str.isascii, rows))):
            return None
        numbers = np.loadtxt(rows, delimiter=layout.delimiter, comments=None, quotechar=None, ndmin=2)
    except ValueError:  # UnicodeDecodeError is one too
        return None
    if numbers.shape != (len(rows), layout.num_columns - layout.has_text_labels):  # blank lines are left out
        return None
    line_numbers = range(lines.first_line, lines.first_line + len(rows))
    if layout.has_text_labels:
        return Samples(numbers, np.array(labels, dtype=np.str_), line_numbers)
    return Samples(numbers[:, 1:], numbers[:, 0], line_numbers)


def _bare(label: str) -> str:
    """The label without blanks and quotes around it; "" for quotes that only `parse_lines` can judge."""
    if '"' in label:
        label = label[1:-1] if label[0] == label[-1] == '"' and label.count('"') == 2 else ""
    return label.strip()


def _fields(line: bytes, delimiter: str, *, where: str) -> list[str] | None:
    """The fields of a line without quotes around them; None for a blank line."""
    try:
        text = line.decode("utf-8").strip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 text ({error}); save the file as UTF-8") from error
    if not text.strip():
        return None
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise DataError(f"{where}: {error}; a sample must be one line of fields separated by {delimiter!r}") from error


def _is_header(fields: list[str]) -> bool:
    """Names, and no number among them: a line with both is a sample with a fault, which must not be dropped."""
    return all(field.lower() not in _MISSING and number_or_none(field) is None for field in fields[1:])


def _label(field: str, layout: Layout, *, where: str) -> str | float:
    if layout.has_text_labels:
        if not field:
            raise DataError(f"{where}: the label (first field) is empty; fill it in or drop the line")
        return field
    label = number_or_none(field)
    if label is None:
        raise DataError(
            f"{where}: the label {shown(field)} (first field) is not a number, but that of line {layout.line} is; "
            "labels must be all numbers or all text"
        )
    return label


def _features(fields: list[str], layout: Layout, *, where: str) -> list[float]:
    text = "".join(fields[1:])
    if text.isascii() and "_" not in text:  # `float` takes for a number what `number_or_none` does
        with contextlib.suppress(ValueError):
            return [*map(float, fields[1:])]
    return [_number(field.strip(), layout, column, where=where) for column, field in enumerate(fields[1:], start=2)]


def _number(field: str, layout: Layout, column: int, *, where: str) -> float:
    number = number_or_none(field)
    if number is not None:
        return number
    name = f" ({layout.names[column - 2]})" if layout.names else ""
    if field.lower() in _MISSING:
        advice = "missing values are not supported: fill them in, or drop the line"
    elif layout.line == int(where.rpartition(":")[2]):
        advice = "correct the field, or pass --header if this line holds the names of the columns"
    else:
        advice = "features must be numbers: correct the field, or encode the column"
    raise DataError(f"{where}: field {column}{name} is {shown(field)}, not a number; {advice}")
