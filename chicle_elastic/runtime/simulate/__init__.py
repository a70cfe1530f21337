"""The simulator: virtual nodes on a virtual clock, under the very scheduler and policies of the agents.

In: a `Scenario` (nodes, network, losses, supply of nodes), policies, and the `Work` of an iteration: charged seconds,
or real solvers on real data.
Out: a `SimulationResult`: seconds, price, chunks moved, stalls, a record per iteration.
It may not know: processes, sockets, torch, the clock of the machine. It plans nothing: what moves, and when, the
scheduler says.
"""
