"""The history of each chunk of a job: `estimator.ledger_`."""

from collections.abc import Iterable, Mapping
from typing import Any

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.html_table import html_table
from chicle_elastic.monitoring.records import Table
from chicle_elastic.values import ChunkAccount

PREFIX = "iterations."


class JobLedger(Table[ChunkAccount]):
    """The accounts of all chunks, by chunk: `ledger[3].iterations`, `pandas.DataFrame(ledger.to_dict())`.

    An owned chunk takes part in every iteration, so the iterations of a chunk add up to those of the job, less those
    in which it was missing after a crash.
    """

    def __init__(self, accounts: Iterable[ChunkAccount] = ()) -> None:
        super().__init__(sorted(accounts, key=lambda account: account.chunk))

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Names of all nodes that processed a chunk, in alphabetical order."""
        return tuple(sorted({node for account in self._records for node in account.iterations}))

    @property
    def replayed(self) -> Mapping[ChunkId, int]:
        """Chunks whose state was reset after they had been processed, and how often; without all other chunks."""
        return {account.chunk: account.replays for account in self._records if account.replays}

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns of Python values: chunk, rows, owner, replays, and `iterations.NODE` of every node."""
        columns: dict[str, list[Any]] = {
            name: [getattr(account, name) for account in self._records]
            for name in ("chunk", "rows", "owner", "replays")
        }
        for node in self.nodes:
            columns[PREFIX + node] = [account.iterations.get(node, 0) for account in self._records]
        return columns

    def _repr_html_(self) -> str:
        return html_table(self.to_dict(), caption=repr(self), rows="chunks")

    def __repr__(self) -> str:
        rows = sum(account.rows for account in self._records)
        moved = sum(len(account.iterations) > 1 for account in self._records)
        return (
            f"JobLedger({len(self)} chunks, {rows} samples, {len(self.nodes)} nodes, {moved} chunks moved, "
            f"{len(self.replayed)} replayed)"
        )
