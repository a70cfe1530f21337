"""Input for the tests of readers and converters."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.readers.base import Block
from chicle_elastic.chunks.views import Array, CsrRows


def write_text(folder: Path, text: str | bytes, name: str) -> Path:
    """A file of that text (UTF-8) or of those bytes."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def joined(blocks: Sequence[Block]) -> tuple[Array, Array]:
    """All blocks as one dense X and y, whatever the width of each block of CSR rows."""
    width = max(block.rows.shape[1] for block in blocks)
    matrices = []
    for block in blocks:
        dense = block.rows.to_scipy().toarray() if isinstance(block.rows, CsrRows) else block.rows
        matrices.append(np.pad(dense, ((0, 0), (0, width - dense.shape[1]))))
    return np.concatenate(matrices), np.concatenate([block.targets for block in blocks])


@dataclass(frozen=True)
class DataSet:
    """All chunks of a folder, rows back in the order of the files they came from."""

    X: Array  # ndarray of shape (num_rows, num_features)
    y: Array  # ndarray of shape (num_rows,)
    weights: Array | None  # ndarray of shape (num_rows,), or None
    order: Array  # row ids in the order of the chunks


def read_back(folder: ChunkFolder) -> DataSet:
    """What a folder holds, after checking it."""
    folder.verify()
    chunks = list(folder)
    order = np.concatenate([chunk.row_ids for chunk in chunks])
    back = np.argsort(order)
    dense = [chunk.rows.to_scipy().toarray() if isinstance(chunk.rows, CsrRows) else chunk.rows for chunk in chunks]
    weights = [chunk.weights for chunk in chunks if chunk.weights is not None]
    return DataSet(
        X=np.concatenate(dense)[back],
        y=np.concatenate([chunk.targets for chunk in chunks])[back],
        weights=np.concatenate(weights)[back] if weights else None,
        order=order,
    )
