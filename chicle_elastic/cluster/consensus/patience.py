"""How long a node without a leader waits, counted in its looks at the newest term, which are 0.1 s apart."""

PATIENCE_LOOKS, RETRY_LOOKS = 20, 3
DOUBT_LOOKS = 25
"""Looks in which a node has to have a majority before it overrules a term. An agent that was stopped still has links to
nodes that have ended, or that went on without it; in 2 s it finds out."""


class Patience:
    """Looks at the newest term since a node has lost its leader."""

    def __init__(self) -> None:
        self._num_looks = self._num_doubts = 0
        self._is_refused = False

    @property
    def is_over(self) -> bool:
        """See the class."""
        return self._num_looks >= PATIENCE_LOOKS

    @property
    def rests(self) -> bool:
        """Say whether this node was refused, and has not waited since."""
        return self._is_refused and not self.is_over

    def begin(self) -> None:
        """The leader is gone: wait from now on. Doubts go on, as a claim that the store refuses does not end them."""
        self._num_looks, self._is_refused = 0, False

    def end(self) -> None:
        """There is a leader."""
        self._num_looks = self._num_doubts = 0

    def shorten(self) -> None:
        """Another node has a leader, and may be about to lose it, too."""
        self._num_looks, self._is_refused = PATIENCE_LOOKS - RETRY_LOOKS, True

    def refuse(self) -> None:
        """The store has granted what this node asked for to another one, which may need it."""
        self._is_refused = True

    def looked(self) -> None:
        """The node has looked once more."""
        self._num_looks += 1

    def doubts(self, is_overruled: bool) -> bool:
        """Whether to look again before this node goes on in spite of the newest term.

        Args:
            is_overruled: That term began without this node, which has a majority now. When it has had one in enough
                looks, in a row, the answer is no, once.
        """
        self._num_doubts = self._num_doubts + 1 if is_overruled else 0
        if self._num_doubts > DOUBT_LOOKS:
            self._num_doubts = 0
        return self._num_doubts > 0
