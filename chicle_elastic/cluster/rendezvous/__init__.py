"""Torch elastic's rendezvous for Chicle: which nodes form a round, agreed by signed values in the store.

In: nodes that want to join or leave, the state that other nodes have written, the job secret.
Out: the members and ranks of a round; the address of the store; errors that torch's agents know.
It may not know: the log, the scheduler, chunks, tasks.
"""

from typing import TYPE_CHECKING

from chicle_elastic.moved import attribute_of

if not TYPE_CHECKING:  # so that mypy refuses a name that is not here
    __getattr__ = attribute_of(__name__)
