"""Samples of a data set by their numbers, and batches of them."""

import bisect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.rows import as_floats, matrix_of
from chicle_elastic.chunks.views import NO_STATE, Array, Chunk, CsrRows
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.torch.schedule import cut


class Batch:
    """The samples of one call of the loop's body. Iterating gives its parts, as in `x, y = batch`.

    Attributes:
        x: The inputs: the first entry of `data`, or all of it where it is no tuple or list.
        y: The targets: the second entry of `data`; None where there is none.
        data: What the data set gave, collated.
        numbers: Numbers of the samples in the data set, ndarray of shape (len(batch),), int64.
        epoch: That the samples belong to, from 0.
        is_rehearsal: The step is not going to count: a node that is about to join computes one, so that its first real
            step is as fast as the others.
    """

    def __init__(self, samples: "Samples", numbers: Array, *, epoch: int, is_rehearsal: bool = False) -> None:
        self.numbers, self.epoch, self.is_rehearsal = numbers, epoch, is_rehearsal
        self._samples = samples
        self.data = samples.fetch(numbers)

    @property
    def x(self) -> Any:
        """The inputs."""
        return self.data[0] if isinstance(self.data, tuple | list) else self.data

    @property
    def y(self) -> Any:
        """The targets, or None."""
        has_targets = isinstance(self.data, tuple | list) and len(self.data) > 1
        return self.data[1] if has_targets else None

    def parts(self, number: int) -> Iterator["Batch"]:
        """Cut the batch into so many batches, for `Loop.backward`; none of them is empty."""
        for part in cut(0, len(self.numbers), min(number, len(self.numbers))):
            numbers = self.numbers[part.start : part.stop]
            yield Batch(self._samples, numbers, epoch=self.epoch, is_rehearsal=self.is_rehearsal)

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)


class Samples:
    """A data set that gives any samples by their numbers.

    Args:
        dataset: Map-style.
        collate: Makes a batch of a list of samples; None where the data set takes a tensor of numbers.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None) -> None:
        self._dataset, self._collate = dataset, collate

    def __len__(self) -> int:
        return len(self._dataset)

    def fetch(self, numbers: Array) -> Any:
        """Return these samples, collated: usually a tuple (inputs, targets)."""
        if self._collate is None:
            return self._dataset[torch.from_numpy(numbers)]
        indices = numbers.tolist()
        if hasattr(self._dataset, "__getitems__"):
            return self._collate(self._dataset.__getitems__(indices))
        return self._collate([self._dataset[index] for index in indices])


def samples_of(dataset: Any, collate: Callable[[list[Any]], Any] | None = None) -> Samples:
    """Return the samples of a map-style data set, of tensors, arrays or a tuple of them, or of a chunk folder. Raises
    UsageError when the samples have no numbers, or are of different lengths."""
    if isinstance(dataset, str | Path):
        dataset = ChunkFolder(dataset)
    if isinstance(dataset, ChunkFolder):
        return Samples(FolderRows(dataset), collate or default_collate)
    parts = (dataset,) if isinstance(dataset, torch.Tensor | np.ndarray) else dataset
    is_tuple = isinstance(parts, tuple) or (isinstance(parts, list) and len(parts) == 2)
    if is_tuple and parts and all(isinstance(part, torch.Tensor | np.ndarray) for part in parts):
        tensors = [torch.as_tensor(part) for part in parts]
        lengths = {len(tensor) for tensor in tensors}
        if len(lengths) != 1:
            raise UsageError(f"the tensors have {sorted(lengths)} samples; give as many of each")
        return Samples(TensorDataset(*tensors), None)
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(
            f"a data set of {type(dataset).__name__} has no samples by number, so no node could take over those of "
            "another one; give a map-style data set, with __len__ and __getitem__, tensors, or a folder that `chicle "
            "convert` has made"
        )
    is_of_tensors = type(dataset) is TensorDataset and collate is None  # a subclass may take one number only
    return Samples(dataset, None if is_of_tensors else collate or default_collate)


class FolderRows:
    """Rows and targets of a chunk folder, dense, with the shape of a sample; their files are mapped where possible."""

    def __init__(self, folder: ChunkFolder) -> None:
        self._folder = folder.mapped() or folder
        self._schema = folder.schema
        counts = [info.num_rows for info in folder.infos(NO_STATE)]
        self._starts = [0, *itertools.accumulate(counts)]
        self._chunks: dict[int, Chunk] = {}

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> tuple[Array, Any]:
        which = bisect.bisect_right(self._starts, number) - 1
        if which not in self._chunks:
            self._chunks[which] = self._folder.load(ChunkId(which), NO_STATE)
        chunk, row = self._chunks[which], number - self._starts[which]
        rows, shape, target = chunk.rows, self._schema.sample_shape, chunk.targets[row]
        if isinstance(rows, CsrRows):
            values: Array = matrix_of(rows)[[row]].toarray()[0]
        else:
            values = np.array(as_floats(rows[row]))
        # Codes of classes as torch's losses want them.
        return values.reshape(shape or values.shape), np.int64(target) if self._schema.num_classes else target
