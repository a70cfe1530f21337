"""CSV text: one sample per line, the label first unless another column is named.

`numpy.loadtxt` parses a block of lines. Where it refuses, or numbers are quoted or lines blank, `parse_lines` reads the
block line by line, decides, and names what is wrong. Labels are numbers or text, as the first one of the file says.
Blank lines are skipped. Fields may be quoted, but not over several lines.

Whether the first line holds names is decided by it and the next line together (`_has_header`), and noted for the user.
"""

import contextlib
import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chicle_elastic.chunks.readers.base import Block, Columns, NoSamplesError, Origin, ReadOptions
from chicle_elastic.chunks.readers.columns import abbreviated, choose_columns
from chicle_elastic.chunks.readers.text import LineBlock, line_blocks, number_or_none, shown
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError, UsageError

_MISSING = {"", "na", "n/a", "null", "none", "?", "-"}
_SEPARATOR_LINE = re.compile(rb'"?sep=([^\r\n"])"?\r?\n')  # Excel's first line, which states the delimiter
_MIN_NUMBERS_COUNTED = 3
"""Features that count 0, 1, 2, ... may be names that pandas gave to columns without any: the user is asked."""
_MAX_LEADING = 1000  # rows of the first block that are looked at to tell an index


@dataclass(frozen=True, slots=True)
class Layout:
    """Holds what the first lines of a file say about all of them."""

    delimiter: str
    columns: Columns
    has_text_labels: bool  # whether the labels are text
    line: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """Positions of the columns to read as numbers, in the order of `Columns.used`."""
        return self.columns.used[1:] if self.has_text_labels else self.columns.used

    def samples(self, numbers: Array, labels: Sequence[str], line_numbers: range | npt.NDArray[np.int64]) -> "Samples":
        """Divide the columns of `numbers` into labels, weights and features; text labels stand in `labels`."""
        targets = np.array(labels, dtype=np.str_) if self.has_text_labels else numbers[:, 0]
        num_features = len(self.columns.features)
        weights = None if self.columns.weight is None else numbers[:, -num_features - 1]
        return Samples(numbers[:, -num_features:], targets, weights, line_numbers)


@dataclass(frozen=True, slots=True)
class Samples:
    """Parsed lines."""

    features: Array  # ndarray of shape (num_rows, num_features), float64
    labels: Array  # ndarray of shape (num_rows,), float64 or str
    weights: Array | None  # ndarray of shape (num_rows,), float64, or None
    line_numbers: range | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Row:
    """One line with fields: its number, the position behind it in its block, and the fields."""

    number: int
    end: int
    fields: list[str]


def read_csv(path: Path, options: ReadOptions) -> Iterator[Block]:
    """Read a CSV file, plain or compressed. Raises NoSamplesError when no line holds a sample, DataError when a line
    has a missing or extra field, or one that is not a number; the message has file, line, field."""
    delimiter = options.delimiter or ("\t" if ".tsv" in path.suffixes else ",")
    blocks = line_blocks(path, block_bytes=options.block_bytes)
    first = next(blocks, None)
    if first is None:
        return
    if separator := _SEPARATOR_LINE.match(first.data):
        delimiter = options.delimiter or separator[1].decode("latin-1")
        first = LineBlock(first.data[separator.end() :], first.first_line + 1, first.bytes_read)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise UsageError(f"the delimiter {delimiter!r} is not one character that can separate fields; pass --delimiter")
    blocks = chain([first], blocks)
    layout, begun = _begin(blocks, path, delimiter, options)
    names = tuple(layout.columns.name(position) for position in layout.columns.features)
    for lines in chain(begun, blocks):
        samples = _parse_fast(lines, layout) or parse_lines(lines, layout, path)
        if not len(samples.labels):
            continue
        yield Block(
            rows=samples.features,
            targets=samples.labels,
            weights=samples.weights,
            origin=Origin(path=path, unit="line", numbers=samples.line_numbers, column_names=names),
            bytes_read=lines.bytes_read,
            columns=layout.columns,
        )


def parse_lines(lines: LineBlock, layout: Layout, path: Path) -> Samples:
    """Parse line by line: the definition of the format, and the one that names what is wrong."""
    rows: list[list[float]] = []
    labels: list[str] = []
    numbers: list[int] = []
    columns = layout.columns
    for number, line in lines.lines():
        where = f"{path}:{number}"
        fields = _fields(line, layout.delimiter, where=where)
        if fields is None:
            continue
        if len(fields) != columns.count:
            raise DataError(
                f"{where}: {len(fields)} fields, but line {layout.line} has {columns.count}; a field is "
                f"{'missing' if len(fields) < columns.count else 'too many'} (delimiter {layout.delimiter!r}): "
                "correct the line"
            )
        if columns.names and [field.strip("\ufeff ") for field in fields] == [*columns.names]:
            raise DataError(f"{where}: the line of names stands here again; remove it, or pass the parts one by one")
        if layout.has_text_labels:
            labels.append(_text_label(fields[columns.label].strip(), layout, where=where))
        rows.append(_numbers(fields, layout, where=where))
        numbers.append(number)
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(layout.numbers))
    return layout.samples(table, labels, np.array(numbers, dtype=np.int64))


def _begin(
    blocks: Iterator[LineBlock], path: Path, delimiter: str, options: ReadOptions
) -> tuple[Layout, list[LineBlock]]:
    """The layout of the file, and the blocks that were read for it from the first sample on. Two lines with fields are
    needed: a header of many columns may fill a block by itself."""
    rows: list[_Row] = []
    begun: list[LineBlock] = []
    for lines in blocks:
        found = list(islice(_rows(lines, path, delimiter), 2 - len(rows)))
        begun += [lines] if found else []
        rows += found
        if len(rows) == 2:
            break
    if not rows:
        raise NoSamplesError(f"{path}: the file has no samples")
    if len(rows[0].fields) < 2:
        raise DataError(
            f"{path}:{rows[0].number}: one field only, {shown(rows[0].fields[0])}; a line is a label and at least one "
            f"feature, separated by {delimiter!r}: pass the --delimiter of this file"
        )
    has_header, words = _has_header(rows, path, options)
    names = tuple(rows[0].fields) if has_header else ()
    if has_header:
        begun[0] = LineBlock(begun[0].data[rows[0].end :], rows[0].number + 1, begun[0].bytes_read)
    samples = rows[1:] if has_header else rows
    if samples and len(samples[0].fields) != len(rows[0].fields):
        raise DataError(
            f"{path}:{samples[0].number}: {len(samples[0].fields)} fields, but the line of names has "
            f"{len(names)}, {abbreviated(names)}; correct it, or pass --no-header if it is a sample"
        )

    def leading(position: int) -> list[str]:
        found = (row.fields for lines in begun for row in _rows(lines, path, delimiter))
        return [fields[position] for fields in islice(found, _MAX_LEADING) if position < len(fields)]

    columns = choose_columns(path, names, len(rows[0].fields), options, leading=leading)
    if not samples:
        raise NoSamplesError(f"{path}: the file has no samples, only a line of names, {abbreviated(names)}")
    layout = Layout(
        delimiter=delimiter,
        columns=replace(columns, header=words),
        has_text_labels=number_or_none(samples[0].fields[columns.label]) is None,
        line=samples[0].number,
    )
    return layout, begun


def _rows(lines: LineBlock, path: Path, delimiter: str) -> Iterator[_Row]:
    end = 0
    for number, line in lines.lines():
        end += len(line) + 1
        fields = _fields(line, delimiter, where=f"{path}:{number}")
        if fields is not None:
            yield _Row(number, end, [field.strip() for field in fields])


def _has_header(rows: Sequence[_Row], path: Path, options: ReadOptions) -> tuple[bool, str]:
    """Decide whether the first line of a file holds names, and say so in words. It does where it holds the names of the
    first file, or one that is asked for, or no number among the features. A line of numbers and texts is a sample with
    a fault, which must not be dropped. Raises UsageError when the line may be both: numbers for names."""
    first, line = rows[0].fields, rows[0].number
    yes = True, f"names in line {line}"
    no = False, f"no names, line {line} is a sample"
    if options.header is not None:
        return yes if options.header else no
    like, asked = options.like, [options.label_column, options.weight_column, *options.drop_columns]
    if like is not None and like.names and set(first) == set(like.names):
        return yes
    if any(name in first and number_or_none(name) is None for name in asked if name is not None):
        return yes
    if like is not None:
        others = {*range(like.count)} - {*like.features}
    else:
        numbers = [int(name) for name in asked if name is not None and re.fullmatch(r"-?\d{1,9}", name, re.ASCII)]
        others = {(place - (place > 0)) % len(first) for place in numbers} or {0}
    features = [field for place, field in enumerate(first) if place not in others]
    texts = [field for field in features if field]  # a comma at the end of each line makes an empty one
    if texts and not any(field.lower() in _MISSING or number_or_none(field) is not None for field in texts):
        return no if len(rows) == 1 and like is not None and not like.names else yes
    counted = [str(number) for number in range(len(first))]
    is_counted = len(features) >= _MIN_NUMBERS_COUNTED and (first == counted or features == counted[: len(features)])
    # A label that is text, above one that is a number.
    pairs = zip(first, rows[-1].fields, strict=False)
    differs = any(
        place in others and above and number_or_none(above) is None and number_or_none(below) is not None
        for place, (above, below) in enumerate(pairs)
    )
    if is_counted or (differs and all(number_or_none(field) is not None for field in features)):
        raise UsageError(
            f"{path}:{line}: {abbreviated(first)} may be a sample, or the names of the columns; pass --header or "
            "--no-header"
        )
    return no


def _parse_fast(lines: LineBlock, layout: Layout) -> Samples | None:
    """The samples that `parse_lines` reads, by `numpy.loadtxt`; None for a block that only `parse_lines` can judge."""
    data, delimiter, columns = lines.data, layout.delimiter, layout.columns
    is_whole = len(columns.used) == columns.count
    may_have_quotes = layout.has_text_labels and is_whole
    if (b'"' in data and not may_have_quotes) or data.count(b"\r") != data.count(b"\r\n"):
        return None
    labels: list[str] = []
    try:
        rows = data.decode("utf-8").removesuffix("\n").split("\n")
        places, num_fields = [*layout.numbers], columns.count
        # With usecols loadtxt does not count the fields of a line.
        if not is_whole and any(row.count(delimiter) != num_fields - 1 for row in rows):
            return None
        if layout.has_text_labels:
            labels, rows = _without_labels(rows, columns.label, delimiter)
            places = [place - (place > columns.label) for place in places]
            num_fields -= 1
        # Only ASCII: with other characters loadtxt knows more blanks than the definition does. It warns of blanks only.
        if not (all(labels) and rows[0].strip() and all(map(str.isascii, rows))):
            return None
        numbers = np.loadtxt(
            rows, delimiter=delimiter, comments=None, quotechar=None, ndmin=2, usecols=None if is_whole else places
        )
    except ValueError:  # UnicodeDecodeError is one too
        return None
    if numbers.shape != (len(rows), num_fields if is_whole else len(places)):  # blank lines are left out
        return None
    if is_whole and places != [*range(num_fields)]:
        numbers = numbers[:, places]
    return layout.samples(numbers, labels, range(lines.first_line, lines.first_line + len(rows)))


def _without_labels(rows: Sequence[str], label: int, delimiter: str) -> tuple[list[str], list[str]]:
    if label == 0:
        cut = [row.partition(delimiter) for row in rows]
        return [_bare(text) for text, _, _ in cut], [rest for _, _, rest in cut]
    fields = [row.removesuffix("\r").split(delimiter) for row in rows]
    labels = [_bare(row.pop(label)) if label < len(row) else "" for row in fields]
    return labels, [delimiter.join(row) for row in fields]


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


def _text_label(field: str, layout: Layout, *, where: str) -> str:
    if not field:
        raise DataError(f"{where}: the label {_place(layout)} is empty; fill it in or drop the line")
    return field


def _numbers(fields: list[str], layout: Layout, *, where: str) -> list[float]:
    chosen = [fields[place] for place in layout.numbers]
    text = "".join(chosen)
    if text.isascii() and "_" not in text:  # `float` takes for a number what `number_or_none` does
        with contextlib.suppress(ValueError):
            return [*map(float, chosen)]
    return [_number(fields[place].strip(), layout, place, where=where) for place in layout.numbers]


def _number(field: str, layout: Layout, place: int, *, where: str) -> float:
    number = number_or_none(field)
    if number is not None:
        return number
    columns = layout.columns
    if place == columns.label:
        raise DataError(
            f"{where}: the label {shown(field)} {_place(layout)} is not a number, but that of line {layout.line} is; "
            "labels must be all numbers or all text"
        )
    name = f" ({columns.names[place]})" if columns.names else ""
    if field.lower() in _MISSING:
        advice = "missing values are not supported: fill them in, or drop the line"
    elif layout.line == int(where.rpartition(":")[2]) and not columns.names:
        advice = "correct the field, or pass --header if this line holds the names of the columns"
    else:
        advice = "features must be numbers: correct the field, or encode the column"
    if layout.line == int(where.rpartition(":")[2]):
        advice += f"; --label-column {place + 1} makes the column the label, --drop-columns {place + 1} leaves it out"
    raise DataError(f"{where}: field {place + 1}{name} is {shown(field)}, not a number; {advice}")


def _place(layout: Layout) -> str:
    return "(first field)" if layout.columns.label == 0 else f"(field {layout.columns.label + 1})"
