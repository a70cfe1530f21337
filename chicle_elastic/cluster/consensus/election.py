"""The election of a log at the beginning of a term: positions of all logs, and which one is the most complete."""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from chicle_elastic.cluster.consensus.entries import Ended
from chicle_elastic.cluster.consensus.log import Log
from chicle_elastic.cluster.consensus.messages import Expel, LogPosition, NewTerm, Refusal
from chicle_elastic.cluster.consensus.node_log import NodeLog
from chicle_elastic.ids import NodeId


class Role(Enum):
    """What an agent is in the present term: see the room; OUT is the end."""

    FOLLOWING = "following"
    CLAIMING = "claiming"
    COLLECTING = "collecting"
    LEADING = "leading"
    OUT = "out"


def ask(log: Log, *, term: int, is_breaking: bool, unreached: tuple[str, ...]) -> NewTerm:
    """The question of a new leader."""
    return NewTerm(term=term, last_term=log.last_term, length=len(log), is_breaking=is_breaking, unreached=unreached)


def answer(log: Log, question: NewTerm, *, asker: str, ended: Ended | None) -> LogPosition:
    """The position of a log, with the entries that the asker lacks: none when the asker's log is no prefix of this one.
    None either when it lacks entries that are no longer kept: an agent that may have effects there has to rejoin."""
    is_prefix = log.term_before(question.length) == question.last_term and question.length >= log.start
    base = question.length if is_prefix else len(log)
    return LogPosition(
        term=question.term,
        last_term=log.last_term,
        length=len(log),
        base=base,
        knows_asker=asker in log.lives.values(),
        tail=log.entries_from(base),
        ended=ended,
    )


def refuse(own: NodeLog, question: NewTerm, asker: str, *, term: int) -> Refusal | Expel:
    """The answer to a candidate that is not followed. One that this log, a better one, has lost would leave if it were
    sent this log. It is told so, as it may reach no leader, and would take one term after the other from the store."""
    if asker in own.lost and (own.log.last_term, len(own.log)) > (question.last_term, question.length):
        return Expel(reason="others have gone on without it, and declared it dead")
    return Refusal(term=term)


class Election:
    """The answers so far."""

    def __init__(self) -> None:
        self._standings: dict[NodeId, LogPosition] = {}

    def add(self, node: NodeId, standing: LogPosition) -> None:
        """A node has answered with its log position."""
        self._standings[node] = standing

    def drop(self, node: NodeId) -> None:
        """A node is gone."""
        self._standings.pop(node, None)

    def clear(self) -> None:
        """A new question is asked."""
        self._standings.clear()

    def has_all(self, nodes: Iterable[NodeId]) -> bool:
        """Whether all of `nodes` have answered."""
        return all(node in self._standings for node in nodes)

    def better_than(self, log: Log, lives: Mapping[NodeId, str]) -> LogPosition | None:
        """The most complete log, by (term of the last entry, length), if it is more complete than `log`.

        A joining node that got a snapshot knows what the last leader knew, but cannot hand it on: it keeps no entries
        yet. As long as the owner of `log` is present in that snapshot, the job did nothing without it, and the log of
        the joining node does not count. Otherwise one log without entries would force every survivor to rejoin.
        """
        present = set(log.lives.values())
        able = [
            at
            for node, at in self._standings.items()
            if at.base <= len(log) or not at.knows_asker or lives.get(node) in present
        ]
        best = max(able, key=lambda at: (at.last_term, at.length), default=None)
        is_better = best is not None and (best.last_term, best.length) > (log.last_term, len(log))
        return best if is_better else None

    def ended(self, own: Ended | None, in_flight: tuple[int, int] | None) -> Ended | None:
        """The end of the iteration in flight, if any task has merged it."""
        for ended in (own, *(at.ended for at in self._standings.values())):
            if ended is not None and (ended.round, ended.iteration) == in_flight:
                return ended
        return None

    def split(self, log: Log) -> Iterator[tuple[NodeId, int | None]]:
        """Each node with the length of its log; None where that log is no prefix of `log`. A log that ends before the
        first kept entry cannot be compared: it counts as empty; its agent gets a snapshot."""
        for node, at in self._standings.items():
            if at.length < log.start:
                yield node, 0
            else:
                yield node, at.length if log.term_before(at.length) == at.last_term else None
