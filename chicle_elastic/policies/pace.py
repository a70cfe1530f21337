"""What policies on nodes read from observations: how fast a figure falls, what an iteration takes, who can go.

    totals_of_iterations   samples that all tasks together have processed
    settled     iterations since the number of nodes last changed
    fall        by what share the figure falls in an iteration, as long as the number of nodes was this one
    iterations_left   until the figure is at a target
    work        node seconds of an iteration, and what it takes beside them
    leavers     which nodes to give back: the slowest, else those that came last
    resize      the actions that make it so many nodes

All are pure: the observations of the last iterations are all they know, so a change of membership has to be found in
them. A node that came has few reports. One that left has none, but where an iteration processes all rows, the others
then have more each. The trainer's figure is taken at its best so far, because a certified gap is not monotone.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from chicle_elastic.ids import NodeId
from chicle_elastic.values import Observations, PolicyAction, ReleaseNode, RequestNodes

SAME = 0.02
"""Relative difference of the samples per node below which the number of nodes was the same, up to some 50 nodes."""


class Work(NamedTuple):
    """What an iteration takes."""

    node_s: float  # seconds that all nodes together compute
    waiting_s: float  # seconds of the iteration beside those of the slowest node: sum of updates, boundary


def working(observations: Observations) -> list[NodeId]:
    """Members that have chunks, in order of their names."""
    return sorted(node for node, count in observations.num_chunks.items() if count)


def takes_all(observations: Observations) -> bool:
    """Whether the last iteration processed all rows of the nodes, as CoCoA does, and not a part, as local SGD does."""
    last = [reports[-1].samples for reports in observations.reports.values() if reports]
    return sum(last) >= 0.9 * sum(observations.samples.values()) > 0


def totals_of_iterations(observations: Observations, window: int) -> list[int]:
    """Return the samples that the tasks which are still there processed in the last iterations, the last one first. The
    sum hardly depends on who had which rows then."""
    length = min(window, max(map(len, observations.reports.values()), default=0))
    return [
        sum(reports[-back].samples for reports in observations.reports.values() if len(reports) >= back)
        for back in range(1, length + 1)
    ]


def settled(observations: Observations) -> int:
    """Last iterations, up to 32, in which as many nodes took part as now; 0 where the last one had others."""
    nodes = working(observations)
    if not nodes:
        return 0
    reports = [observations.reports.get(node, ()) for node in nodes]
    length = min(map(len, reports))
    if not takes_all(observations):
        return length
    now = sum(observations.samples[node] for node in nodes) / len(nodes)
    for back in range(1, length + 1):
        if abs(fmean(node[-back].samples for node in reports) / now - 1) > SAME:
            return back - 1
    return length


def fall(observations: Observations, figure: str, window: int) -> float | None:
    """Share of `figure` by which an iteration lowers it, 0 for none and 1 for all. Returns the geometric mean over
    these iterations; None where too few are known, or the figure is none that falls to zero."""
    first = len(observations.figures) - 1 - settled(observations)
    known = [(place, figures[figure]) for place, figures in enumerate(observations.figures) if figure in figures]
    if not known or any(not 0 < value < math.inf for _, value in known):
        return None
    end = known[-1][0]
    begin = max((place for place, _ in known if max(first, 0) <= place <= end - window), default=None)
    if begin is None:
        return None
    before, best = min(value for place, value in known if place <= begin), min(value for _, value in known)
    return 1.0 - math.exp(math.log(best / before) / (end - begin))


def iterations_left(observations: Observations, figure: str, target: float | None, window: int) -> float | None:
    """Iterations until the figure is at its target, with as many nodes as now; None where that cannot be known."""
    share = fall(observations, figure, window)
    if target is None or not share:
        return None
    present = next(figures[figure] for figures in reversed(observations.figures) if figure in figures)
    if share >= 1 or present <= target:
        return 0.0
    return math.log(target / present) / math.log1p(-share)


def work(observations: Observations, window: int) -> Work | None:
    """What the last iterations took, up to `window`, with as many nodes as now; None before the first one."""
    count = min(window, settled(observations), len(observations.iteration_s))
    if not count:
        return None
    durations = [
        [report.duration_s for report in observations.reports[node][-count:]] for node in working(observations)
    ]
    waiting_s = (
        total_s - max(node_s)
        for total_s, node_s in zip(observations.iteration_s[-count:], zip(*durations, strict=True), strict=True)
    )
    return Work(node_s=sum(median(node_s) for node_s in durations), waiting_s=max(0.0, median(waiting_s)))


def leavers(observations: Observations, count: int) -> Sequence[NodeId]:
    """So many nodes to give back: those without chunks first, then the slowest, of equal ones those that came last."""

    def rank(node: NodeId) -> tuple[bool, int, int]:
        reports = observations.reports.get(node, ())
        seconds = [report.duration_s / report.samples for report in reports if report.samples]
        # Within a tenth nodes are as fast as each other: the choice follows from speeds, and not from noise.
        speed = round(10 * math.log(median(seconds))) if seconds and median(seconds) > 0 else 0
        return observations.num_chunks[node] > 0, -speed, len(reports)

    newest = sorted(observations.num_chunks, key=lambda node: (len(node), node), reverse=True)
    return sorted(newest, key=rank)[:count]


def resize(observations: Observations, total: int) -> tuple[PolicyAction, ...]:
    """Actions that make it so many nodes: a request, and who goes where there are more."""
    excess = len(observations.num_chunks) - total
    return (RequestNodes(total), *(ReleaseNode(node) for node in leavers(observations, max(0, excess))))
