"""The history of each chunk of a job: `estimator.ledger_`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.html_table import html_table
from chicle_elastic.values import ChunkAccount

PREFIX = "iterations."


class JobLedger(Sequence[ChunkAccount]):
    """The accounts of all chunks, by chunk: `ledger[3].iterations`, `pandas.DataFrame(ledger.to_dict())`.

    An owned chunk takes part in every iteration, so the iterations of a chunk add up to those of the job, less those
    in which it was missing after a crash.
    """

    def __init__(self, accounts: Iterable[ChunkAccount] = ()) -> None:
        self._accounts = tuple(sorted(accounts, key=lambda account: account.chunk))

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Names of all nodes that processed a chunk, in alphabetical order."""
        return tuple(sorted({node for account in self._accounts for node in account.iterations}))

    @property
    def replayed(self) -> Mapping[ChunkId, int]:
        """Chunks whose state was reset after they had been processed, and how often; without all other chunks."""
        return {account.chunk: account.replays for account in self._accounts if account.replays}

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns of Python values: chunk, rows, owner, replays, and `iterations.NODE` of every node."""
        columns: dict[str, list[Any]] = {
            name: [getattr(account, name) for account in self._accounts]
            for name in ("chunk", "rows", "owner", "replays")
        }
        for node in self.nodes:
            columns[PREFIX + node] = [account.iterations.get(node, 0) for account in self._accounts]
        return columns

    def _repr_html_(self) -> str:
        return html_table(self.to_dict(), caption=repr(self), rows="chunks")

    def __len__(self) -> int:
        return len(self._accounts)

    @overload
    def __getitem__(self, index: int) -> ChunkAccount: ...
    @overload
    def __getitem__(self, index: slice) -> "JobLedger": ...
    def __getitem__(self, index: int | slice) -> "ChunkAccount | JobLedger":
        return JobLedger(self._accounts[index]) if isinstance(index, slice) else self._accounts[index]

    def __iter__(self) -> Iterator[ChunkAccount]:
        return iter(self._accounts)

    def __eq__(self, other: object) -> bool:
        return self._accounts == other._accounts if isinstance(other, JobLedger) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # accounts hold mappings

    def __repr__(self) -> str:
        rows = sum(account.rows for account in self._accounts)
        moved = sum(len(account.iterations) > 1 for account in self._accounts)
        return (
            f"JobLedger({len(self)} chunks, {rows} samples, {len(self.nodes)} nodes, {moved} chunks moved, "
            f"{len(self.replayed)} replayed)"
        )
