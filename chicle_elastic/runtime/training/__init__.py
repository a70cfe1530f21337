"""What every runtime does with an iteration: solve, merge, judge, certify, record.

In: a `Job`; chunks; sums of updates.
Out: the model, records of iterations, an `Outcome`; pages of the ledger.
It may not know: processes, sockets, files, agents.
"""

from typing import TYPE_CHECKING

from chicle_elastic.moved import attribute_of

if not TYPE_CHECKING:  # so that mypy refuses a name that is not here
    __getattr__ = attribute_of(__name__)
