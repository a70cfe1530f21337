"""Whole fits of ours and of the peers, alternated: the rows about speed, on large and on small data."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import scale

from benchmarks.bars import Bar, Row
from benchmarks.datasets import DataSet
from benchmarks.fits import Seconds, median, timed_fit
from benchmarks.peers import Peer, Search
from benchmarks.problems import Problem, primal, strong
from benchmarks.references import Reference, reference
from benchmarks.svm_bars import SMALL_MS, SPEED
from benchmarks.svm_data import load
from benchmarks.svm_peers import ours

TOLERANCES = (1e-3, 1e-5)
CASES = {  # part: data set, C (None means lambda = 0.01 n), gap of the reference
    "higgs": ("higgs", None, 1e-7),
    "criteo": ("criteo", None, 1e-7),
    "criteo-c1": ("criteo", 1.0, 1e-6),
    "mnist": ("mnist", None, 1e-7),
}
SMALL_REPEATS = 41


def compare_speed(part: str, arguments: argparse.Namespace, peers: list[Peer]) -> Iterator[Row]:
    """Rows of one case: every peer at every tolerance, timed in turn with ours."""
    name, fixed_C, gap = CASES[part]
    data = load(name, arguments.data_dir, quick=arguments.quick)
    C = strong(data) if fixed_C is None else fixed_C
    problem = Problem(data, "hinge", C)
    best = narrow_reference(problem, 1e-6 if arguments.quick else gap, arguments.data_dir)
    print(f"\n{part}: C = {C:g}, {best.text()}", flush=True)
    searches = {peer: Search(peer, problem, best, arguments.data_dir) for peer in peers}
    for tol in TOLERANCES:
        charged = {peer: search.fewest(tol, arguments.cap) for peer, search in searches.items()}
        times: dict[Peer | None, list[Seconds]] = {None: [], **{peer: [] for peer, m in charged.items() if m}}
        for repeat in range(arguments.repeats + 1):
            for peer, seconds in times.items():
                model = ours(C, tol) if peer is None else searches[peer].make(charged[peer] or 1)
                seconds.append(timed_fit(model, data))
                if peer is None:
                    check_certificate(model, problem, tol, best)
                    details = {"iterations": model.n_iter_, "gap": model.duality_gap_}
            if repeat == 0:  # a warm-up of all solvers
                for seconds in times.values():
                    seconds.clear()
        for peer, search in searches.items():
            bar = SPEED.get((part, peer.name), {}).get(tol)
            if charged[peer] is None and bar is not None:
                times[peer] = [timed_fit(search.make(search.most_tried()), data)]
            yield speed_row(part, tol, search, charged[peer], times, bar, details, arguments.cap)


def narrow_reference(problem: Problem, tol: float, folder: Path) -> Reference:
    """The best possible objective to `tol`.

    Raises:
        SystemExit: It is not known as well as that; nothing could be compared with it.
    """
    best = reference(problem, tol, folder)
    if not best.width <= tol:
        raise SystemExit(f"the reference of {problem.title} is {best.width:.1e} wide, above {tol:g}")
    return best


def check_certificate(model: Any, problem: Problem, tol: float, best: Reference) -> None:
    """A certificate that does not hold makes all times worthless, and so does a reference that can be beaten."""
    objective = primal(problem, model.coef_)
    suboptimality = best.suboptimality(objective)
    if not (model.duality_gap_ <= tol and suboptimality <= tol):
        sys.exit(
            f"{problem.title}: ours stopped at gap {model.duality_gap_:.1e} with suboptimality {suboptimality:.1e}, "
            f"and tol is {tol:g}: the certificate is wrong or max_iter too small"
        )
    best.note(problem, objective)


def speed_row(
    part: str,
    tol: float,
    search: Search,
    iterations: int | None,
    times: dict[Peer | None, list[Seconds]],
    bar: Bar | None,
    details: dict[str, Any],
    cap_s: float,
) -> Row:
    """One peer at one tolerance. One that did not get there counts with a fit as long as the cap, if there is a bar."""
    peer, problem = search.peer, search.problem
    our_s = median(times[None], peer.clock)
    peer_s = median(times[peer], peer.clock) if times.get(peer) else None
    if iterations is None:
        against = f"not reached in {peer_s or cap_s:.1f} s"
    else:
        against = f"{(peer_s or 0.0) * 1e3:.0f} ms, {iterations} it."
    return Row(
        part=part,
        what=f"{peer.name}: {problem.data.title}, {'C = 1' if problem.C == 1.0 else 'lambda = 0.01 n'}",
        tol=tol,
        measured=f"{our_s * 1e3:.0f} ms, {details['iterations']} it.",
        against=against,
        value=None if peer_s is None else peer_s / our_s,
        bar=bar,
        details={
            "peer": peer.name,
            "peer_version": peer.version,
            "peer_iterations": iterations,
            "clock": peer.clock,
            "ours": details,
            "ours_cpu_s": [seconds.cpu for seconds in times[None]],
            "ours_wall_s": [seconds.wall for seconds in times[None]],
            "peer_cpu_s": [seconds.cpu for seconds in times.get(peer, [])],
            "peer_wall_s": [seconds.wall for seconds in times.get(peer, [])],
        },
    )


def small_data() -> list[DataSet]:
    """What scikit-learn brings along, in its own float64."""
    digits, digit = load_digits(return_X_y=True)
    cancer, is_benign = load_breast_cancer(return_X_y=True)
    return [
        DataSet("digits-even", "digits, even or odd", digits / 16, (digit % 2 == 0).astype(np.int64)),
        DataSet("digits-ten", "digits, 10 classes", digits / 16, digit.astype(np.int64)),
        DataSet("cancer", "breast_cancer", scale(cancer), is_benign.astype(np.int64)),
    ]


def compare_small(arguments: argparse.Namespace, peers: list[Peer]) -> Iterator[Row]:
    """Ours minus liblinear in wall milliseconds, C = 1."""
    tol, C = 1e-3, 1.0
    peer = next(peer for peer in peers if peer.name == "liblinear")
    for data in small_data():
        problem = Problem(data, "hinge", C)
        best = narrow_reference(problem, 1e-5, arguments.data_dir)
        search = Search(peer, problem, best, arguments.data_dir)
        iterations = search.fewest(tol, arguments.cap)
        if iterations is None:
            sys.exit(f"{data.title}: liblinear did not get to {tol:g} in {arguments.cap:g} s; raise --cap")
        our_times, peer_times = [], []
        for _ in range((5 if arguments.quick else SMALL_REPEATS) + 1):
            model = ours(C, tol)
            our_times.append(timed_fit(model, data))
            peer_times.append(timed_fit(search.make(iterations), data))
        our_ms, peer_ms = (1e3 * median(times[1:], "wall") for times in (our_times, peer_times))
        yield Row(
            part="small",
            what=f"ours minus liblinear, ms: {data.title}, C = 1",
            tol=tol,
            measured=f"{our_ms:.1f} ms, {model.n_iter_} it.",
            against=f"{peer_ms:.1f} ms, {iterations} it.",
            value=our_ms - peer_ms,
            bar=SMALL_MS,
            details={"ours_ms": our_ms, "peer_ms": peer_ms, "gap": model.duality_gap_},
        )
