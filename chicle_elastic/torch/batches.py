"""Samples of a data set by their numbers, and batches of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, TensorDataset, default_collate

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.rows import as_floats, take_rows
from chicle_elastic.chunks.views import Array, Chunk, CsrRows, DataSchema
from chicle_elastic.errors import UsageError
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
        self.data = data = samples.fetch(numbers)
        self.x, self.y = (*data, None)[:2] if isinstance(data, tuple | list) else (data, None)

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
    """Gives any samples of a data set by their numbers.

    Args:
        dataset: Map-style, a tensor or array, a tuple of them, or a chunk folder.
        collate: Makes a batch of a list of samples; by default torch's.

    Raises:
        UsageError: The samples have no numbers, or are of different lengths.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None) -> None:
        if isinstance(dataset, str | Path):
            dataset = ChunkFolder(dataset)
        if isinstance(dataset, ChunkFolder):
            dataset = ConcatDataset([ChunkRows(chunk, dataset.schema) for chunk in dataset.mapped() or dataset])
        parts = (dataset,) if isinstance(dataset, torch.Tensor | np.ndarray) else dataset
        is_tuple = isinstance(parts, tuple) or (isinstance(parts, list) and len(parts) == 2)
        if is_tuple and parts and all(isinstance(part, torch.Tensor | np.ndarray) for part in parts):
            if len(lengths := {len(part) for part in parts}) > 1:
                raise UsageError(f"the tensors have {sorted(lengths)} samples; give as many of each")
            dataset = TensorDataset(*map(torch.as_tensor, parts))
        is_by_number = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, IterableDataset) or not is_by_number:
            raise UsageError(
                f"a data set of {type(dataset).__name__} has no samples by number, so no node could take over those of "
                "another one; give a map-style data set, with __len__ and __getitem__, tensors, or a folder that "
                "`chicle convert` has made"
            )
        takes_many = type(dataset) is TensorDataset and collate is None  # a subclass may take one number only
        self._dataset, self._collate = dataset, None if takes_many else collate or default_collate

    def __len__(self) -> int:
        return len(self._dataset)

    def fetch(self, numbers: Array) -> Any:
        """Return these samples, collated: usually a tuple (inputs, targets)."""
        if self._collate is None:
            return self._dataset[torch.from_numpy(numbers)]
        of_many = getattr(self._dataset, "__getitems__", lambda many: [self._dataset[one] for one in many])
        return self._collate(of_many(numbers.tolist()))


class ChunkRows(Dataset[Any]):
    """Rows and targets of a chunk, dense, with the shape of a sample."""

    def __init__(self, chunk: Chunk, schema: DataSchema) -> None:
        self._chunk, self._schema = chunk, schema

    def __len__(self) -> int:
        return self._chunk.num_rows

    def __getitem__(self, row: int) -> tuple[Array, Any]:
        rows, target = take_rows(self._chunk.rows, np.array([row])), self._chunk.targets[row]
        values: Array = rows.to_scipy().toarray() if isinstance(rows, CsrRows) else as_floats(rows)
        # Codes of classes as torch's losses want them.
        return values.reshape(self._schema.sample_shape or -1), np.int64(target) if self._schema.num_classes else target
