"""Writes a chunk folder from a stream of rows of unknown length, in bounded memory, all or nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.views import Array, Rows

DEFAULT_MEMORY_BYTES = 64 << 20


class ChunkFolderWriter:
    """Takes rows block by block, shuffles them all, and writes them as a chunk folder.

        with ChunkFolderWriter("a9a.chunks", kind="csr", dtype="float32") as writer:
            for block in blocks:
                writer.add(block.rows, block.targets)
            folder = writer.finish(classes=(-1, 1), recode=lambda kept: (kept > 0).astype("int32"))

    Leaving the `with` block without `finish`, by an error or Ctrl-C, leaves nothing behind. Rows get their number in
    the order of `add`, and keep it in `row_ids`. Every order of the rows is equally likely (external shuffle through
    temporary files beside the target), whatever the size of the data; memory stays below `memory_bytes` and a block.

    Args:
        path: Folder to write; its parent exists.
        kind: "dense" or "csr".
        dtype: dtype of the features: float32, float64, or (dense only) uint8.
        num_features: Columns; None takes them from the rows (CSR: the most that any block has).
        has_weights: Whether every block comes with weights.
        sample_shape: Shape of one sample where it is not flat.
        chunk_bytes: Size of a chunk at most; None chooses by DESIGN 4 for `max_tasks`.
        max_tasks: Largest number of tasks that will train on the folder.
        shuffle_seed: Seed of the shuffle.
        overwrite: Replace an existing chunk folder at `path`.
        memory_bytes: Memory to use.

    Raises:
        UsageError: The target exists and is not to be overwritten, or an argument cannot work.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        kind: Literal["dense", "csr"],
        dtype: str,
        num_features: int | None = None,
        has_weights: bool = False,
        sample_shape: tuple[int, ...] = (),
        chunk_bytes: int | None = None,
        max_tasks: int = 8,
        shuffle_seed: int = 0,
        overwrite: bool = False,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        raise NotImplementedError

    def __enter__(self) -> "ChunkFolderWriter":
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def add(self, rows: Rows, targets: Array, weights: Array | None = None) -> None:
        """Take some rows; they are copied before this returns.

        Args:
            rows: ndarray of shape (num_rows, num_features) or `CsrRows`, of the writer's dtype.
            targets: ndarray of shape (num_rows,), numbers; kept as float64 until `finish` says what they are.
            weights: ndarray of shape (num_rows,), float32 or float64.
        """
        raise NotImplementedError

    def finish(
        self,
        *,
        classes: Sequence[int | float | str] = (),
        recode: Callable[[Array], Array] | None = None,
        target_dtype: Literal["int32", "float32", "float64"] | None = None,
        num_features: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> ChunkFolder:
        """Shuffle, write the chunks, and put the folder in its place.

        Args:
            classes: Labels by class code; empty for real-valued targets.
            recode: Makes the final targets of the kept ones, chunk by chunk; by default they are only cast.
            target_dtype: dtype of targets; by default int32 for class codes and float64 for real values.
            num_features: CSR: columns, where the end of the data decides.
            on_progress: Called with the rows written so far and all rows.

        Returns:
            The folder, opened.

        Raises:
            DataError: There were no rows, or a class code is out of range.
        """
        raise NotImplementedError
