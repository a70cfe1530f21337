"""The task of a node in a cluster: it computes iterations, and executes the orders of its agent at boundaries.

In: messages of the agent, arenas with chunks, the sums of the round.
Out: iterations, votes, pages of the ledger, user messages, the outcome.
It may not know: the log, other agents, how agents move chunks into the arenas.
"""

from typing import TYPE_CHECKING

from chicle_elastic.moved import attribute_of

if not TYPE_CHECKING:  # so that mypy refuses a name that is not here
    __getattr__ = attribute_of(__name__)
