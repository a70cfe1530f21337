"""What every runtime does with an iteration: solve, merge, judge, certify, record.

In: a `Job`; chunks; sums of updates.
Out: the model, records of iterations, an `Outcome`; pages of the ledger.
It may not know: processes, sockets, files, agents.
"""
