"""What a fit of a linear model is trained on, whatever its targets are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chicle_elastic.chunks.rows import matrix_of
from chicle_elastic.chunks.sources import ChunkSource
from chicle_elastic.chunks.views import Array, Chunk
from estimators.checks import Columns, require_finite
from estimators.streaming import rows_in_order


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Validated input of a fit."""

    source: ChunkSource  # where the runtime takes the chunks from; where the rows lie in a folder, that folder
    columns: Columns  # those that have values there
    features: Any = None  # ndarray or CSR matrix of shape (n_samples, n_features); None where the rows lie in a folder
    # `X`, `y` and `metadata` for the hooks of callbacks; empty where there is no X
    hook_arguments: dict[str, Any] = field(default_factory=dict)

    def by_row(self, function: Callable[[Any], Array]) -> Array:
        """Return what `function` makes of rows, dense or CSR, for all of them in order."""
        if self.features is None:
            return self.read(lambda chunk: function(matrix_of(chunk.rows)))
        return function(self.features)

    def read(self, function: Callable[[Chunk], Array | None]) -> Array:
        """Return what `function` makes of the chunks of a folder, by row; one chunk is in memory at a time."""
        return rows_in_order(self.source, function)

    def require_finite(self, estimator: Any) -> None:
        """Refuse NaN and infinity in rows that were passed to fit; those of a folder were looked at when it was made.
        Raises DataError with row and column of the value."""
        if self.features is not None:
            require_finite(estimator, self.features)

    def findings(self, estimator: Any, trainer: Any, model: Array) -> tuple[str, ...]:
        """Return what is conspicuous about the data of a fit that did not converge."""
        return ()
