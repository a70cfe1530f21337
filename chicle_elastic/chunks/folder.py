"""A data set on disk: a folder of chunk files and their manifest."""

from pathlib import Path


class ChunkFolder:
    """A data set on disk, as `chicle convert` writes it; it is a `ChunkSource`, and `fit` takes it in place of X and y.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        raise NotImplementedError
