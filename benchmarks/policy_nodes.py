"""What `Scale` and `Tune` bring: cost and time to a gap against every fixed number of nodes, mean of some seeds.

CoCoA with redrawn owners (`Shuffle`): with fixed ones one node is the fastest on these data. See `policy_costs` for
what is charged. A fixed number of nodes is not told prices: its job takes as long at any price.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean

from benchmarks.bars import Bar, Row
from benchmarks.datasets import DataSet
from benchmarks.policy_costs import Bill, Prices, paid
from benchmarks.real import load_real, missing
from benchmarks.shapes import higgs
from chicle_elastic.policies.base import Policy
from chicle_elastic.policies.scale import Scale
from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.policies.tune import Tune

FIXED = (1, 2, 4, 8, 16)
SEEDS = tuple(range(1, 11))
TOL, MOST = 1e-4, 300
DEAR = 60.0
"""Price of a node second once it has risen; 1 before."""
RISES_S = 26.0
"""Second from which on nodes are dear."""


def tune_rows(arguments: argparse.Namespace, notes: list[str]) -> list[Row]:
    """Scale-in where the gap stalls: time and node time over those of the fastest fixed number of nodes."""
    rows = []
    for data in data_sets(arguments, notes):
        fixed = {nodes: fixed_bills(data, nodes, arguments.quick) for nodes in FIXED}
        bills = run(data, (Shuffle(share=1.0), Tune(target=TOL)), None, arguments.quick)
        best = min(FIXED, key=lambda nodes: mean(fixed[nodes], "time_s"))
        for name, what, bar in (("time_s", "seconds", 1.05), ("node_s", "node seconds", 0.7)):
            rows.append(row_of("tune", data, what, name, bills, fixed, best, Bar(gate=bar, at_most=True)))
    return rows


def scale_rows(arguments: argparse.Namespace, notes: list[str]) -> list[Row]:
    """Nodes become dear: cost over that of the cheapest fixed number, time over that of the fastest one."""
    rows = []
    prices = Prices(((0.0, 1.0), (RISES_S, DEAR)))
    policy = Scale(least=4, most=16, time_value=8 * DEAR, target=TOL, window=2, margin=0.02)
    for data in data_sets(arguments, notes):
        fixed = {
            nodes: [at_prices(bill, nodes, prices) for bill in fixed_bills(data, nodes, arguments.quick)]
            for nodes in FIXED
        }
        bills = run(data, (Shuffle(share=1.0), policy), prices, arguments.quick)
        for name, what, bar in (("cost", "price of all node seconds", 1.0), ("time_s", "seconds", 1.1)):
            best = min(FIXED, key=lambda nodes: mean(fixed[nodes], name))
            rows.append(row_of("scale", data, what, name, bills, fixed, best, Bar(gate=bar, at_most=True)))
    return rows


def data_sets(arguments: argparse.Namespace, notes: list[str]) -> list[DataSet]:
    """HIGGS-shaped rows, and a9a where its file is."""
    found = [higgs(4_000 if arguments.quick else 40_000)]
    if missing("a9a", arguments.real):
        notes.append("a9a is left out: there is no file (say --real DIR)")
    else:
        found.append(load_real("a9a", arguments.real, quick=arguments.quick))
    return found


KNOWN: dict[tuple[str, int], list[Bill]] = {}


def fixed_bills(data: DataSet, nodes: int, is_quick: bool) -> list[Bill]:
    """Of jobs with a fixed number of nodes, one for each seed; both parts use them."""
    if (data.key, nodes) not in KNOWN:
        KNOWN[data.key, nodes] = run(data, (Shuffle(share=1.0),), None, is_quick, nodes)
    return KNOWN[data.key, nodes]


def run(
    data: DataSet, policies: Sequence[Policy], prices: Prices | None, is_quick: bool, nodes: int = max(FIXED)
) -> list[Bill]:
    """Jobs that begin with so many nodes, one for each seed."""
    return [
        paid(
            data.X,
            data.y,
            C=100.0 / data.num_samples,
            num_tasks=nodes,
            tol=TOL,
            most=MOST,
            seed=seed,
            policies=policies,
            prices=prices,
        )[0]
        for seed in (SEEDS[:1] if is_quick else SEEDS)
    ]


def at_prices(bill: Bill, nodes: int, prices: Prices) -> Bill:
    """The bill of a fixed number of nodes at other prices."""
    return Bill(**{**asdict(bill), "cost": nodes * prices.total(0.0, bill.time_s)})


def mean(bills: Sequence[Bill], name: str) -> float:
    """Over the seeds; infinite where one did not come to the gap."""
    return fmean(getattr(bill, name) if bill.has_converged else float("inf") for bill in bills)


def row_of(
    part: str,
    data: DataSet,
    what: str,
    name: str,
    bills: Sequence[Bill],
    fixed: dict[int, list[Bill]],
    best: int,
    bar: Bar,
) -> Row:
    """A line of the table."""
    measured, against = mean(bills, name), mean(fixed[best], name)
    others = ", ".join(f"{nodes}: {mean(fixed[nodes], name):.4g}" for nodes in fixed)
    details = {
        "policy": [asdict(bill) for bill in bills],
        "fixed": {nodes: [asdict(bill) for bill in found] for nodes, found in fixed.items()},
    }
    what = f"{data.title}, C = {100 / data.num_samples:.3g}, 16 nodes at first: {what}"
    beside = f"{against:.4g} with {best} nodes ({others})"
    return Row(part, what, TOL, f"{measured:.4g}", beside, measured / against, bar, details)
