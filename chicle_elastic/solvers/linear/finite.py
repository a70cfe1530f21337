"""Which row has a feature that is NaN or infinite, once a sum over rows has shown that there is one."""

import numpy as np

from chicle_elastic.chunks.rows import as_floats
from chicle_elastic.chunks.views import Array, CsrRows
from chicle_elastic.errors import DataError
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.local_chunk import RowBlock


def require_finite(chunk_id: ChunkId, block: RowBlock, values: Array) -> None:
    """Look at the rows of a chunk whose value is not finite.

    Args:
        chunk_id: The chunk.
        block: Its rows.
        values: Something that was found of each row, shape (n,).

    Raises:
        DataError: It names chunk and row.
    """
    for row in np.flatnonzero(~np.isfinite(values)).tolist():
        if isinstance(block.rows, CsrRows):
            values = block.rows.values[block.rows.indptr[row] : block.rows.indptr[row + 1]]
        else:
            values = as_floats(block.rows[row])
        if not np.isfinite(values).all():  # else the value is beyond its dtype, which is no crime
            raise DataError(
                f"chunk {chunk_id}, row {row} (row {int(block.row_ids[row])} of the data set): a feature is NaN or "
                "infinite; leave the sample out or fill the value in"
            )
