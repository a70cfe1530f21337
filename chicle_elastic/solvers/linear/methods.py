"""Which method a job follows: decided from counts, never from times, so that equal jobs go the same way everywhere.

    coordinate descent  one pass costs as much as reading the rows, and many passes are needed where margins of many
                        samples are close to 1 at once, or where several tasks have to damp their steps
    Newton's method     a handful of passes whatever C and the number of tasks; sums of second derivatives cost
                        (num_features + 1)^2 / 2 values per output and message, and as many products per row

Rows x features of the data, the loss and the number of tasks decide between the two:

* smooth losses (squared hinge, logistic): Newton's method where the second derivatives of all columns fit into a
  message (`MOST_BLOCK_VALUES`), and with several tasks in any case; there a block of the heaviest columns is the
  preconditioner of conjugate gradients. The squared hinge over little data is left to a task that is alone.
* hinge: with several tasks Newton's method where all columns fit. Where they do not, the tasks descend along
  coordinates, and if that crawls one task solves for the undecided rows of all (`working_set`), or all tasks by
  conjugate gradients where these rows are too many.
* A task that is alone descends along coordinates and takes local Newton steps in turns (`race`). Where its rows stay in
  files these steps would need too much memory per row, so it goes the way of several tasks.
"""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

from chicle_elastic.chunks.views import DataSchema
from chicle_elastic.solvers.linear.newton.state import NewtonState
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.products import FEW_COLUMNS
from chicle_elastic.solvers.local_chunk import MOST_CACHED_VALUES

SMALL_VALUES = 1 << 18  # feature values up to which NumPy is as fast as a kernel, the kernel's compilation not counted
MOST_COLUMNS = 2048  # columns, the intercept included, up to which the block has all of them
MOST_BLOCK_VALUES = 1 << 22
"""Values that are sent, copied or kept beside the rows at most, all outputs together: 32 MiB. With more rows x columns
a pass that is made again costs less than one that looks at several steps at once."""
PASS_VECTORS = 32
"""Values per row that a pass of one output has at once, at most, which count as rows in files do not: a part of these
and its values are as large as a part in memory."""
MOST_ROWS = MOST_BLOCK_VALUES // 4  # rows for each of which a number is sent at most, several times
FEW_VALUES = MOST_BLOCK_VALUES // 2  # values that are sent together with their columns at most
CHEAP_PRODUCTS = 1 << 28  # multiplications that the second derivatives of all rows may take in any case
ROWS_PER_COLUMN, ROWS_PER_SPARSE_COLUMN = 10, 100
"""Rows per column of a block that is only a preconditioner: in general, and where it has some columns of sparse rows.
There a product takes longer than the second derivatives of so many rows, and a better block saves every third one."""


Algorithm = Literal["auto", "newton", "cocoa"]
ALGORITHMS = get_args(Algorithm)


class Method(Enum):
    """How w is found."""

    COORDINATES = "coordinate descent (CoCoA)"
    NEWTON = "Newton's method on chunks"
    WORKING_SET = "coordinate descent (CoCoA), and a working set on one task"


@dataclass(frozen=True, slots=True)
class Choice:
    """A method, and why it was chosen; both are shown to the user."""

    method: Method
    reason: str


def choose(
    loss: Loss,
    schema: DataSchema,
    *,
    num_outputs: int,
    num_tasks: int,
    algorithm: Algorithm = "auto",
    has_free_intercept: bool = False,
) -> Choice:
    """Choose the method of a job with so many tasks. A free intercept ties duals together, which needs Newton's."""
    D, n, limit = schema.num_features + 1, schema.num_rows, most_block_columns(num_outputs)
    is_hinge, is_narrow = loss is Loss.HINGE, limit >= D
    is_alone = num_tasks == 1 and not schema.are_rows_in_files
    tasks = "rows in files" if schema.are_rows_in_files else f"{num_tasks} tasks"
    where = f"{D} columns and {num_outputs} output{'s' if num_outputs > 1 else ''}"
    if algorithm != "auto":
        return Choice(Method.NEWTON if algorithm == "newton" else Method.COORDINATES, f"algorithm={algorithm!r}")
    if not is_alone and (is_hinge or loss.has_kinks) and n * D <= FEW_VALUES:
        return Choice(Method.WORKING_SET, f"{tasks}, and rows that all fit into a message")
    if is_hinge:
        if is_alone:
            return Choice(Method.COORDINATES, "the hinge on one task")
        if is_narrow:
            return Choice(Method.NEWTON, f"{tasks}, and second derivatives of {where} fit into a message")
        too_wide = f"{tasks}, the hinge, and second derivatives of {where} do not fit into a message"
        if n <= MOST_ROWS:
            return Choice(Method.WORKING_SET, too_wide)
        return Choice(Method.NEWTON, f"{tasks}, the hinge, and {n} rows")
    if is_alone and loss.has_kinks and n * D <= MOST_CACHED_VALUES:
        return Choice(Method.COORDINATES, "one task with little data")
    if is_narrow:
        return Choice(Method.NEWTON, f"a smooth loss, and second derivatives of {where} fit into a message")
    if has_free_intercept:
        return Choice(Method.NEWTON, "a smooth loss with an intercept that is not penalised")
    if not is_alone:
        method = Method.WORKING_SET if loss.has_kinks and n <= MOST_ROWS else Method.NEWTON
        return Choice(method, f"a smooth loss on {tasks}")
    return Choice(Method.COORDINATES, f"one task and {where}, too many for second derivatives")


def most_block_columns(num_outputs: int) -> int:
    """Columns that a block of each output may have."""
    return min(MOST_COLUMNS, math.isqrt(2 * MOST_BLOCK_VALUES // num_outputs))


def values_of_row(num_values: int, *, are_in_files: bool) -> int:
    """Return what counts of a row where large data is cut into parts of `MOST_BLOCK_VALUES`."""
    return num_values + (PASS_VECTORS if are_in_files else 0)


def is_narrow(schema: DataSchema, num_outputs: int = 1) -> bool:
    """Say whether second derivatives of all columns and outputs fit into a message."""
    return most_block_columns(num_outputs) > schema.num_features


def newton_state(loss: Loss | None, schema: DataSchema, *, num_outputs: int, num_tasks: int) -> NewtonState:
    """How Newton's method goes about such data, from so many tasks on; a loss of real targets is None."""
    D, limit = schema.num_features + 1, most_block_columns(num_outputs)
    is_narrow = limit >= D
    columns = D if is_narrow else min(limit, MOST_COLUMNS // 2)
    if not is_narrow and num_tasks == 1:  # a pass costs no message, so a large block of few rows does not pay
        columns = min(columns, max(1, schema.num_rows // ROWS_PER_COLUMN))
    products = schema.num_rows * columns * columns // 2
    is_cheap = columns <= FEW_COLUMNS or products <= CHEAP_PRODUCTS
    row_step = 1
    # Corners need steps that are as good as they can be. With kinks a sum of all costs no more than the rows that have
    # changed sides.
    is_exact = is_narrow and (is_cheap or loss in (None, Loss.HINGE) or (loss is not None and loss.has_kinks))
    if not (is_exact or is_cheap):
        per_column = ROWS_PER_SPARSE_COLUMN if schema.kind == "csr" and not is_narrow else ROWS_PER_COLUMN
        row_step = max(1, schema.num_rows // (per_column * columns))
    return NewtonState(
        D=D,
        block_columns=columns,
        row_step=row_step,
        is_exact=is_exact,
        is_rough=is_exact and loss not in (None, Loss.HINGE),
        has_many_rows=schema.num_rows * D > MOST_BLOCK_VALUES,
        outputs=[],
    )
