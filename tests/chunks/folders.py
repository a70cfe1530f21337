"""Chunk folders for tests, and manifests that lie."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.folder_writer import ChunkFolderWriter
from chicle_elastic.chunks.headers import crc_of
from chicle_elastic.chunks.rows import rows_of
from chicle_elastic.chunks.views import Array

LABELS = ("blue", "green", "red")


def samples(num_rows: int = 100, num_features: int = 6) -> tuple[Array, Array, Array]:
    """X (float32, half 0), class codes and weights."""
    rng = np.random.default_rng(1)
    X = (rng.normal(size=(num_rows, num_features)) * (rng.random((num_rows, num_features)) < 0.5)).astype(np.float32)
    return X, rng.integers(3, size=num_rows), rng.random(num_rows)


def write_folder(path: Path, *, is_sparse: bool = False, has_weights: bool = False, **options: Any) -> ChunkFolder:
    """A folder of 100 rows in several chunks."""
    X, codes, weights = samples()
    rows = rows_of(sparse.csr_matrix(X) if is_sparse else X)
    block = (rows, codes, weights if has_weights else None)
    options = {"chunk_bytes": 600, "kind": "csr" if is_sparse else "dense", "has_weights": has_weights} | options
    return write_blocks(path, [block], **options)


def write_blocks(
    path: Path, blocks: Iterable[tuple[Any, ...]], *, finish: Mapping[str, Any] | None = None, **options: Any
) -> ChunkFolder:
    """A folder of blocks, each the arguments of `add`; `finish` are the arguments of that, `options` the writer's."""
    options = {"kind": "dense", "dtype": "float32"} | options
    with ChunkFolderWriter(path, **options) as writer:
        for block in blocks:
            writer.add(*block)
        return writer.finish(**({"classes": LABELS} if finish is None else finish))


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and make its checksum right, as somebody would who wants it to be believed."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    edit(content)
    del content["crc32"]
    crc = crc_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    path.write_text(json.dumps(content | {"crc32": f"{crc:08x}"}))
