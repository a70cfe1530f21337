"""Where everybody stands when a new term begins, and which log is the best."""

from collections.abc import Iterable, Iterator, Mapping

from chicle_elastic.cluster.entries import Ended
from chicle_elastic.cluster.log import Log
from chicle_elastic.cluster.log_messages import NewTerm, Standing
from chicle_elastic.ids import NodeId


def ask(log: Log, *, term: int, is_breaking: bool) -> NewTerm:
    """The question of a new lead."""
    return NewTerm(term=term, last_term=log.last_term, length=len(log), is_breaking=is_breaking)


def answer(log: Log, question: NewTerm, *, asker: str, ended: Ended | None) -> Standing:
    """Where a log stands, with what the asker lacks: nothing, when the asker's log is no beginning of this one.

    Nothing either when it lacks more than is kept: an agent that has orders there has to begin afresh.

    Args:
        log: The log.
        question: What was asked.
        asker: Life of the agent that asks.
        ended: The iteration in flight, if it was merged here.
    """
    is_prefix = log.term_before(question.length) == question.last_term and question.length >= log.start
    base = question.length if is_prefix else len(log)
    return Standing(
        term=question.term,
        last_term=log.last_term,
        length=len(log),
        base=base,
        knows_asker=asker in log.lives.values(),
        tail=log.entries_from(base),
        ended=ended,
    )


class Census:
    """The answers so far."""

    def __init__(self) -> None:
        self._standings: dict[NodeId, Standing] = {}

    def add(self, node: NodeId, standing: Standing) -> None:
        """A node has said where it stands."""
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

    def better_than(self, log: Log, lives: Mapping[NodeId, str]) -> Standing | None:
        """The best log, by (term of the last entry, length), if it is better than `log`.

        A newcomer that was given the state knows what the last lead knew, and cannot tell it: it keeps no entries yet.
        As long as the owner of `log` is present there, nothing was done by them without it, and the newcomer's log does
        not count. Otherwise everybody who has survived would have to begin afresh because of somebody who has nothing.

        Args:
            log: Of the new lead.
            lives: Life of each node that has answered.
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
        """The end of the iteration in flight, if it was merged anywhere."""
        for ended in (own, *(at.ended for at in self._standings.values())):
            if ended is not None and (ended.round, ended.iteration) == in_flight:
                return ended
        return None

    def split(self, log: Log) -> Iterator[tuple[NodeId, int | None]]:
        """Each node with the length of its log; None where that is no beginning of `log`.

        Of a log that ends before what is kept, nobody knows: it counts as empty, and its agent is given the state.
        """
        for node, at in self._standings.items():
            if at.length < log.start:
                yield node, 0
            else:
                yield node, at.length if log.term_before(at.length) == at.last_term else None
