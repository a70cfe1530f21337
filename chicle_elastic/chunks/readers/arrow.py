"""Arrow columns as NumPy has them: a column of numbers or text as a vector, and one of lists as a matrix."""

from typing import TYPE_CHECKING

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


def list_values(kind: "pa.DataType") -> "pa.DataType | None":
    """Return the type of the values in the lists of a column, or None where `kind` is not one of lists."""
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)  # tensors of a fixed shape are lists of their values
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return kind.value_type if is_list else None


def require_numbers(where: object, name: str | int, kind: "pa.DataType", remedy: str) -> None:
    """Refuse features that are neither numbers nor lists of numbers. Raises DataError with the column and its type."""
    from pyarrow import types

    of_one = list_values(kind) or kind
    if types.is_integer(of_one) or types.is_floating(of_one) or types.is_boolean(of_one) or types.is_decimal(of_one):
        return
    raise DataError(f"{where}: column {name!r} is {kind}, not numbers; {remedy}")


def column_values(
    where: object, name: str | int, column: "pa.Array", first_row: int, width: int | None = None
) -> Array:
    """Return the values of a column without gaps, over the same memory where possible. Raises DataError when a value is
    missing, lists differ in length, or the type is none of these. Returns numbers as their NumPy dtype, and text as
    str, of shape (rows,); numbers of lists of shape (rows, length)."""
    import pyarrow as pa
    from pyarrow import compute, types

    if column.null_count:
        row = first_row + column.is_null().to_pylist().index(True)
        raise DataError(
            f"{where}, row {row}: column {name!r} has no value; missing values are not supported: fill them in, or "
            "drop the rows"
        )
    if list_values(column.type) is not None:
        column = getattr(column, "storage", column)
        lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
        length = int(lengths[0]) if width is None and len(lengths) else width or 0
        if not (lengths == length).all() or not length:
            row = int(np.argmax(lengths != length))
            before = f"and rows before it have {length}" if length else "which is no feature"
            raise DataError(
                f"{where}, row {first_row + row}: column {name!r} has a list of length {lengths[row]}, {before}; "
                "make all lists equally long, or drop the row"
            )
        values = column.flatten()
        if values.null_count:
            row, place = divmod(values.is_null().to_pylist().index(True), length)
            where, name = f"{where}, row {first_row + row}", f"{name}[{place}]"
            raise DataError(f"{where}: column {name!r} has no value; fill it in, or drop the row")
        return column_values(where, name, values, first_row).reshape(-1, length)
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if types.is_string(column.type) or types.is_large_string(column.type):
        return np.array(column.to_pylist(), dtype=np.str_)
    if types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    raise DataError(f"{where}: column {name!r} is {column.type}; labels must be numbers or text: convert it")
