"""Rows with labels or a target, as every benchmark of the linear models has them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class DataSet:
    """Rows and labels, or a target.

    Attributes:
        key: Name that tells apart all parameters of the generator.
        title: Name for people.
        X: ndarray or CSR matrix of shape (num_samples, num_features).
        y: ndarray of shape (num_samples,), class labels, or numbers.
    """

    key: str
    title: str
    X: Any
    y: np.ndarray

    @property
    def num_samples(self) -> int:
        """Rows of X."""
        return len(self.y)

    @property
    def num_features(self) -> int:
        """Columns of X."""
        return int(self.X.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Say whether X is a CSR matrix."""
        return bool(sp.issparse(self.X))

    @property
    def num_classes(self) -> int:
        """Different labels."""
        return len(np.unique(self.y))

    def fresh(self) -> Any:
        """X for one fit: a CSR matrix without memory, so that no fit gains from the checks of an earlier one."""
        if not self.is_sparse:
            return self.X
        return sp.csr_matrix((self.X.data, self.X.indices, self.X.indptr), shape=self.X.shape, copy=False)

    def parts(self) -> tuple[np.ndarray, ...]:
        """The arrays that make up X."""
        return (self.X.data, self.X.indices, self.X.indptr) if self.is_sparse else (self.X,)
