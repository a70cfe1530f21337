"""Observations of policies on nodes: tables of what they see, without a runtime."""

from collections.abc import Sequence

from chicle_elastic.ids import NodeId
from chicle_elastic.values import Observations, ReleaseNode, RequestNodes, TaskReport

ROWS = 960
"""Of the data, divided among the nodes."""


def seen(
    nodes: int,
    *,
    figures: Sequence[float | None] = (),
    before: int | None = None,
    since: int | None = None,
    waiting_s: float = 0.25,
    pass_s: float = 16.0,
    slow: int | None = None,
    part: float = 1.0,
    name: str = "duality_gap",
    **more: object,
) -> Observations:
    """What policies see after iterations with these figures.

    Args:
        nodes: Members, n0, n1, ...
        figures: Of the iterations, oldest first; None where there was none.
        before: Members, of the same names and more or fewer, until `since` iterations ago.
        since: Iterations with the present members; None for all.
        waiting_s: Seconds of an iteration beside what tasks compute.
        pass_s: Seconds of all rows on one node.
        slow: This node takes twice as long.
        part: Share of their rows that tasks process in an iteration.
        name: Of the figure.
        more: Fields of `Observations`.
    """
    length = len(figures)
    counts = [nodes if since is None or back < since else before or nodes for back in reversed(range(length))]

    def report(node: int, count: int) -> TaskReport:
        samples = int(part * ROWS / count)
        return TaskReport(samples=samples, duration_s=pass_s * samples / ROWS * (2.0 if node == slow else 1.0))

    members = [NodeId(f"n{number}") for number in range(nodes)]
    fields: dict[str, object] = {
        "round": 1,
        "iteration": length,
        "num_chunks": dict.fromkeys(members, 96 // nodes),
        "samples": dict.fromkeys(members, ROWS // nodes),
        "capacity_bytes": dict.fromkeys(members),
        "used_bytes": dict.fromkeys(members, 1),
        "reports": {
            member: tuple(report(number, count) for count in counts if number < count)
            for number, member in enumerate(members)
        },
        "figures": tuple({} if figure is None else {name: figure} for figure in figures),
        "iteration_s": tuple(
            waiting_s + max((report(number, count).duration_s for number in range(min(nodes, count))), default=0.0)
            for count in counts
        ),
        "min_nodes": 1,
        "max_nodes": 16,
        "wanted": nodes,
    }
    return Observations(**{**fields, **more})  # type: ignore[arg-type]


def falling(share: float, length: int = 12, start: float = 1.0) -> tuple[float, ...]:
    """Figures each of which is lower than the one before by this share."""
    return tuple(start * (1.0 - share) ** number for number in range(length))


def total_of(actions: Sequence[object]) -> int:
    """What is asked for."""
    (total,) = [action.total for action in actions if isinstance(action, RequestNodes)]
    return total


def released(actions: Sequence[object]) -> list[str]:
    """Who goes."""
    return [action.node for action in actions if isinstance(action, ReleaseNode)]
