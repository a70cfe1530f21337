"""State diagrams for the site, drawn from what the scheduler does.

The states are the code's own enumerations. The edges are those that a few hundred simulated histories went along
(joins, notices, crashes, failed copies, full memory; the tests judge thousands of the same kind), each labelled with
the events that caused it. So a diagram cannot show an edge that the code does not have, and a new state without a
place fails the build.

    cd docs; python -m _ext.state_diagrams FOLDER      writes job.png and chunk.png
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.scheduling.scheduler import Scheduler, State
from tests.harness.sim_cluster import SimCluster

NUM_HISTORIES = 400
NONE = "no copy"
"""State of a chunk on a node that has no copy of it."""

PARTS = (0.5, 0.42, 0.58, 0.34, 0.66, 0.28, 0.72)
"""Where on its arrow a label may be: as close to the middle as there is a free place."""

Place = tuple[float, float]
Edges = dict[tuple[str, str], Counter[str]]

JOB_PLACES: Mapping[str, Place] = {
    "waiting": (0, 1),
    "forming": (1.1, 1),
    "moving": (2.2, 1.8),
    "running": (3.3, 1),
    "paused": (2.2, 0.2),
    "finished": (3.3, -0.5),
}
CHUNK_PLACES: Mapping[str, Place] = {
    NONE: (0, 1),
    "unwanted": (0, 2),
    "loading": (1.1, 2),
    "loaded": (2.3, 2),
    "precopying": (1.1, 1),
    "precopied": (2.2, 1),
    "copying": (1.1, 0),
    "copied": (2.2, 0),
    "owned": (3.5, 1.1),
    "stray": (1.1, -0.9),
    "freeing": (3.5, -0.9),
}


def observe(num_histories: int = NUM_HISTORIES) -> tuple[Edges, Edges]:
    """Edges of the job's states and of a chunk's phases on a node, with the events that caused them."""
    job: Edges = defaultdict(Counter)
    chunk: Edges = defaultdict(Counter)

    class Observed(Scheduler):
        """A scheduler that is looked at before and after each event."""

        def handle(self, event, *, now):
            """As always."""
            state, phases = self.state, _phases(self)
            effects = super().handle(event, now=now)
            name = type(event).__name__
            if self.state is not state:
                job[state.value, self.state.value][name] += 1
            after = _phases(self)
            for key in phases.keys() | after.keys():
                old, new = phases.get(key, NONE), after.get(key, NONE)
                if old != new:
                    chunk[old, new][name] += 1
            return effects

    for seed in range(num_histories):
        SimCluster(seed, make_scheduler=Observed).run()
    return job, chunk


def _phases(scheduler: Scheduler) -> dict:
    ledger = scheduler.ledger
    return {
        (node, copy): phase.value for node, held in ledger.node_chunks.items() for copy, phase in held.copies.items()
    }


def draw(edges: Edges, places: Mapping[str, Place], states: type[Enum], path: Path, *, title: str) -> None:
    """Draw a diagram: a box per state, an arrow per edge, labelled with the events behind most of its transitions.

    Raises:
        KeyError: A state of the code, or of an edge, has no place.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.transforms import Bbox

    for state in states:
        places[state.value]
    xs, ys = zip(*places.values(), strict=True)
    figure, ax = plt.subplots(figsize=(11, 1.2 + 1.9 * (max(ys) - min(ys))))
    ax.set(xlim=(min(xs) - 0.35, max(xs) + 0.35), ylim=(min(ys) - 0.3, max(ys) + 0.3), title=title)
    ax.axis("off")
    boxes = {
        name: ax.text(*place, name, ha="center", va="center", fontsize=12, zorder=3, bbox=_box(name))
        for name, place in places.items()
    }
    figure.canvas.draw()
    taken = [box.get_window_extent() for box in boxes.values()]
    for (old, new), events in sorted(edges.items()):
        (x0, y0), (x1, y1) = places[old], places[new]
        bend = 0.16 if (new, old) in edges else (0.22 if _passes_a_state(places, old, new) else 0.04)
        ax.annotate(
            "",
            (x1, y1),
            (x0, y0),
            arrowprops={
                "arrowstyle": "-|>",
                "color": "#4b6a88",
                "connectionstyle": f"arc3,rad={bend}",
                "patchA": boxes[old].get_bbox_patch(),
                "patchB": boxes[new].get_bbox_patch(),
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )
        # In pixels: the control point of the curve is bend times the length away from its middle, at right angles.
        (u0, v0), (u1, v1) = ax.transData.transform([(x0, y0), (x1, y1)])
        u, v = (u0 + u1) / 2 + bend * (v1 - v0), (v0 + v1) / 2 - bend * (u1 - u0)
        style = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.5}
        label = "\n".join(name for name, _ in events.most_common(2))
        text = ax.text(0, 0, label, ha="center", va="center", fontsize=7, color="#222", zorder=4, bbox=style)

        def put(t, text=text, curve=((u0, v0), (u, v), (u1, v1))):
            """Put the label at the part t of the curve; returns how much of it other labels and boxes cover."""
            weights = ((1 - t) ** 2, 2 * t * (1 - t), t**2)
            pixels = [sum(w * point[axis] for w, point in zip(weights, curve, strict=True)) for axis in (0, 1)]
            text.set_position(ax.transData.inverted().transform(pixels))
            extent = text.get_window_extent()
            shared = (Bbox.intersection(extent, other) for other in taken)
            return sum(both.width * both.height for both in shared if both is not None)

        put(min(PARTS, key=put))
        taken.append(text.get_window_extent())
    figure.savefig(path, bbox_inches="tight", facecolor="white")
    plt.close(figure)


def _box(name: str) -> dict:
    return {"boxstyle": "round,pad=0.5", "facecolor": "#eeeeee" if name == NONE else "#dcebf7", "edgecolor": "#4b6a88"}


def _passes_a_state(places: Mapping[str, Place], old: str, new: str) -> bool:
    """Whether a straight arrow would go through the box of a third state."""
    (x0, y0), (x1, y1) = places[old], places[new]
    for name, (x, y) in places.items():
        if name not in (old, new):
            length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
            along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length
            away = abs((x - x0) * (y1 - y0) - (y - y0) * (x1 - x0)) / length
            if 0 < along < length and away < 0.2:
                return True
    return False


def main(folder: Path) -> None:
    """Write both diagrams."""
    folder.mkdir(parents=True, exist_ok=True)
    job, chunk = observe()
    # Any copy is gone with its node: that edge would leave every box.
    shown = {edge: _without(events, "NodeLost") for edge, events in chunk.items()}
    least = 0.003 * sum(events.total() for events in shown.values())
    shown = {edge: events for edge, events in shown.items() if events.total() >= least}
    draw(job, JOB_PLACES, State, folder / "job.png", title="A job, as the scheduler sees it")
    draw(
        shown, CHUNK_PLACES, Phase, folder / "chunk.png", title="A chunk on one node (every copy is gone with NodeLost)"
    )


def _without(events: Counter[str], name: str) -> Counter[str]:
    return Counter({event: count for event, count in events.items() if event != name})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
