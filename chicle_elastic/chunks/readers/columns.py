"""Which column of a file is the label, which are features, and how they match those of the first file.

One place for every format that has columns (CSV, compressed or not, and Parquet). A user expects of files with names
that equal names are equal columns, whatever their order, so they are matched by name, and other or repeated names are
refused. Where one of two files has no names (`split` leaves a header in the first piece only), columns are matched by
place; their number must be equal, and a note says so.

An index that pandas or R wrote beside the data is no feature. It is left out, with a note, where it is sure to be one;
where it is not, the user is asked.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from chicle_elastic.chunks.readers.base import Columns, ReadOptions
from chicle_elastic.errors import DataError, UsageError

MAX_NAMES_SHOWN = 20
MIN_ROWS_COUNTED = 10
"""A label that counts the first rows is refused from so many rows on: ten classes may stand in order, few more do."""

_INDEX_NAME = re.compile(r"__index_level_\d+__")
_NUMBER = re.compile(r"-?\d{1,9}", re.ASCII)


def choose_columns(
    path: Path,
    names: Sequence[str],
    count: int,
    options: ReadOptions,
    *,
    leading: Callable[[int], Sequence[str]],
    index_names: Sequence[str] = (),
) -> Columns:
    """Find out what each column of a file is. Raises UsageError when a column that is asked for does not exist,
    DataError when names repeat or are missing, or the columns are not those of the first file."""
    like = options.like
    if like is not None and not (names and like.names):
        return _match_by_place(path, tuple(names), count, like)
    file = _File(path, tuple(names), count)
    if like is None:
        asked = {file.position(name, "--drop-columns") for name in options.drop_columns}
        label = None if options.label_column is None else file.position(options.label_column, "--label-column")
        weight = None if options.weight_column is None else file.position(options.weight_column, "--weight-column")
        known = {position for position in (label, weight) if position is not None}
        for position in known & asked:
            raise UsageError(f"{path}: column {file.shown(position)} is both used and in --drop-columns; drop another")
        known |= asked
    else:
        used = {like.names[position] for position in like.used}
        dropped = set(like.names) - used
        asked = {place for place, name in enumerate(names) if name in dropped}
        label, weight = None, None
        known = asked | {place for place, name in enumerate(names) if name in used}
    left_out, notes = file.index(known, leading, index_names)
    left_out |= asked
    kept = [place for place in range(count) if place not in left_out]
    file.check_names(kept, known)
    if like is not None:
        return _match_by_name(path, tuple(names), kept, like, notes)
    if label is None and kept:
        label = kept[0]
        if _counts(leading(label), least=MIN_ROWS_COUNTED):
            raise DataError(
                f"{path}: the label would be the first column, {file.shown(label)}, but it counts the rows; if it is "
                f"an index, pass --drop-columns {file.typed(label)}, else name the label with --label-column"
            )
    if label is not None and label == weight:
        raise UsageError(f"{path}: column {file.shown(label)} cannot be both label and weight; pass --label-column")
    others = [place for place in kept if place not in (label, weight)]
    if label is None or not others:
        left = f"besides the label {file.shown(label)}" if label is not None else "at all"
        raise DataError(f"{path}: no column is left for features {left}; columns are {abbreviated(file.called)}")
    return Columns(
        path=path, names=file.names, count=count, label=label, weight=weight, features=tuple(others), notes=notes
    )


def abbreviated(names: Sequence[object]) -> str:
    """The names as a list, cut in its middle where it is long."""
    if len(names) <= MAX_NAMES_SHOWN:
        return f"[{', '.join(map(repr, names))}]"
    half = MAX_NAMES_SHOWN // 2
    return f"[{', '.join(map(repr, names[:half]))}, ... {', '.join(map(repr, names[-half:]))}]"


class _File:
    def __init__(self, path: Path, names: tuple[str, ...], count: int) -> None:
        self.path = path
        self.names = names
        self.count = count
        self.called: Sequence[str | int] = names or range(1, count + 1)

    def shown(self, position: int) -> str:
        """The column at `position`, for a message."""
        return repr(self.called[position]) if self.called[position] != "" else f"{position + 1} (without a name)"

    def typed(self, position: int) -> str:
        """Return the name by which an option calls the column at `position`."""
        return str(self.called[position] or position + 1)

    def position(self, asked: str, option: str) -> int:
        """The position of the column that `option` asks for, by its name or by its number."""
        if self.names.count(asked) > 1:
            raise DataError(f"{self.path}: there are several columns {asked!r}, which {option} asks for; pass a number")
        if asked in self.names:
            return self.names.index(asked)
        if _NUMBER.fullmatch(asked) and 1 <= abs(int(asked)) <= self.count:
            return int(asked) - 1 if int(asked) > 0 else self.count + int(asked)
        lowered = {name.lower(): name for name in self.names}
        near = difflib.get_close_matches(asked.lower(), lowered, 1)
        hint = f"; did you mean {lowered[near[0]]!r}?" if near else ""
        if not self.names:
            hint = " and have no names; pass a number, or --header if the first line holds their names"
        raise UsageError(
            f"{self.path}: there is no column {asked!r}, which {option} asks for; columns are "
            f"{abbreviated(self.called)}{hint}"
        )

    def check_names(self, kept: Sequence[int], known: set[int]) -> None:
        """Raise DataError where a column that is kept has the name of another one, or none and is none of `known`."""
        if not self.names:
            return
        names = [self.names[place] for place in kept]
        for place in kept:
            if not self.names[place] and place not in known:
                raise DataError(
                    f"{self.path}: column {place + 1} has no name; columns are {abbreviated(self.names)}: name it, or "
                    f"pass --drop-columns {place + 1}"
                )
        if len(set(names)) < len(names):
            repeated = sorted({name for name in names if names.count(name) > 1})
            raise DataError(
                f"{self.path}: column names repeat in {abbreviated(self.names)}: {abbreviated(repeated)}; rename the "
                "columns, or leave some out with --drop-columns NUMBER"
            )

    def index(
        self, known: set[int], leading: Callable[[int], Sequence[str]], index_names: Sequence[str]
    ) -> tuple[set[int], tuple[str, ...]]:
        """Positions of columns that are an index and none of `known`, and a note about each."""
        found = {
            place
            for place, name in enumerate(self.names)
            if place not in known and (name in index_names or _INDEX_NAME.fullmatch(name))
        }
        if self.names and self.names[0] in ("", "Unnamed: 0") and 0 not in known | found:
            if not _counts(leading(0), least=0):
                raise DataError(
                    f"{self.path}: the first column has no name and looks like the index of a data frame; pass "
                    f"--drop-columns 1 to leave it out, --label-column 1 if it is the label, or name it; columns are "
                    f"{abbreviated(self.names)}"
                )
            found.add(0)
        return found, tuple(
            f"{self.path}: column {self.shown(place)} is the index of a data frame and is left out"
            for place in sorted(found)
        )


def _match_by_place(path: Path, names: tuple[str, ...], count: int, like: Columns) -> Columns:
    if count != like.count:
        raise DataError(
            f"{path} has {count} columns, and {like.path} has {like.count}; files of one data set must agree"
        )
    notes: tuple[str, ...] = ()
    if names or like.names:
        without, named = (like.path, path) if names else (path, like.path)
        notes = (f"{without}: has no names of columns; its columns are taken in the order of {named}",)
    return replace(like, path=path, names=names, header="", notes=notes)


def _match_by_name(
    path: Path, names: tuple[str, ...], kept: Sequence[int], like: Columns, notes: tuple[str, ...]
) -> Columns:
    places = {names[place]: place for place in kept}
    wanted = [like.names[position] for position in like.used]
    if places.keys() != set(wanted):
        missing = [name for name in wanted if name not in places]
        more = [name for name in places if name not in set(wanted)]
        raise DataError(
            f"{path} has the columns {abbreviated(list(places))}, but {like.path} has {abbreviated(wanted)}: missing "
            f"{abbreviated(missing)}, unknown {abbreviated(more)}; files of one data set must agree: rename the "
            "columns, or leave some out with --drop-columns"
        )
    label, *rest = (places[name] for name in wanted)
    weight = None if like.weight is None else rest.pop(0)
    return Columns(
        path=path, names=names, count=len(names), label=label, weight=weight, features=tuple(rest), notes=notes
    )


def _counts(values: Sequence[str], *, least: int) -> bool:
    """Return whether at least `least` values go up by 1, as row numbers do."""
    if len(values) < least or not all(re.fullmatch(r"\d{1,15}", value, re.ASCII) for value in values):
        return False
    return not values or [*map(int, values)] == [*range(int(values[0]), int(values[0]) + len(values))]
