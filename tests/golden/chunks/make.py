"""Writes the golden chunk files and the golden chunk folder of the present format version.

Run it once per released version, as `python -m tests.golden.chunks.make`, and keep what older versions wrote: readers
take older versions for ever.
"""

from pathlib import Path

import numpy as np

from chicle_elastic.chunks.folder_writer import ChunkFolderWriter
from chicle_elastic.chunks.headers import VERSION
from tests.chunks.samples import CHUNKS, encoded, sample_chunk

HERE = Path(__file__).parent
LABELS = ("no", "perhaps", "yes")


def golden_rows() -> tuple[np.ndarray, np.ndarray]:
    """X and class codes of the golden folder."""
    return (np.arange(60) * 11 % 23 / 8).astype(np.float32).reshape(20, 3), np.arange(20) % 3


def main() -> None:
    """Write all files of this version."""
    for name in CHUNKS:
        (HERE / f"{name}-v{VERSION}.bin").write_bytes(encoded(sample_chunk(name)).tobytes())
    X, codes = golden_rows()
    with ChunkFolderWriter(
        HERE / f"folder-v{VERSION}", kind="dense", dtype="float32", chunk_bytes=280, overwrite=True
    ) as writer:
        writer.add(X, codes)
        writer.finish(classes=LABELS)


if __name__ == "__main__":
    main()
