"""Whole fits of ours and of the peers, alternated: the rows about speed, on large and on small data."""

import argparse
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import scale

from benchmarks.svm_bars import SMALL_MS, SPEED, Bar, Row
from benchmarks.svm_data import DataSet, Reference, load, primal, reference
from benchmarks.svm_peers import Peer, Search, Seconds, ours, strong, timed_fit

TOLERANCES = (1e-3, 1e-5)
CASES = {  # part: data set, C (None means lambda = 0.01 n), gap of the reference
    "higgs": ("higgs", None, 1e-7),
    "criteo": ("criteo", None, 1e-7),
    "criteo-c1": ("criteo", 1.0, 1e-6),
    "mnist": ("mnist", None, 1e-7),
}
SMALL_REPEATS = 41


def median(times: list[Seconds], clock: str) -> float:
    """Median seconds on one of the two clocks."""
    return statistics.median(getattr(seconds, clock) for seconds in times)


def compare_speed(part: str, arguments: argparse.Namespace, peers: list[Peer]) -> Iterator[Row]:
    """Rows of one case: every peer at every tolerance, timed in turn with ours."""
    name, fixed_C, gap = CASES[part]
    data = load(name, arguments.data_dir, quick=arguments.quick)
    C = strong(data) if fixed_C is None else fixed_C
    best = reference(data, C, 1e-6 if arguments.quick else gap, arguments.data_dir)
    print(f"\n{part}: C = {C:g}, P* in [{best.lower[0]:.9g}, {best.upper[0]:.9g}] (width {best.width:.1e})", flush=True)
    searches = {peer: Search(peer, data, C, best, arguments.cap, arguments.data_dir) for peer in peers}
    for tol in TOLERANCES:
        charged = {peer: search.fewest(tol) for peer, search in searches.items()}
        times: dict[Peer | None, list[Seconds]] = {None: [], **{peer: [] for peer, m in charged.items() if m}}
        for repeat in range(arguments.repeats + 1):
            for peer, seconds in times.items():
                model = ours(C, tol) if peer is None else searches[peer].make(charged[peer] or 1)
                seconds.append(timed_fit(model, data))
                if peer is None:
                    check_certificate(model, data, C, tol, best)
                    details = {"iterations": model.n_iter_, "gap": model.duality_gap_}
            if repeat == 0:  # a warm-up of everybody
                for seconds in times.values():
                    seconds.clear()
        for peer, search in searches.items():
            bar = SPEED.get((part, peer.name), {}).get(tol)
            if charged[peer] is None and bar is not None:
                times[peer] = [timed_fit(search.make(search.most_tried()), data)]
            yield speed_row(part, data, C, tol, search, charged[peer], times, bar, details)


def check_certificate(model: Any, data: DataSet, C: float, tol: float, best: Reference) -> None:
    """A certificate that does not hold makes all times worthless, and so does a reference that can be beaten."""
    suboptimality = best.suboptimality(primal(data, model.coef_, C))
    if not (model.duality_gap_ <= tol and suboptimality <= tol):
        sys.exit(
            f"{data.title}, C={C:g}: ours stopped at gap {model.duality_gap_:.1e} with suboptimality "
            f"{suboptimality:.1e}, and tol is {tol:g}: the certificate is wrong or max_iter too small"
        )
    if suboptimality < -best.width - 1e-9:
        sys.exit(f"{data.title}, C={C:g}: better than the best possible by {-suboptimality:.1e}; empty --data-dir")


def speed_row(
    part: str,
    data: DataSet,
    C: float,
    tol: float,
    search: Search,
    iterations: int | None,
    times: dict[Peer | None, list[Seconds]],
    bar: Bar | None,
    details: dict[str, Any],
) -> Row:
    """One peer at one tolerance. One that did not get there counts with a fit as long as the cap, if there is a bar."""
    peer = search.peer
    our_s = median(times[None], peer.clock)
    peer_s = median(times[peer], peer.clock) if times.get(peer) else None
    if iterations is None:
        against = f"not reached in {peer_s or search.cap_s:.1f} s"
    else:
        against = f"{(peer_s or 0.0) * 1e3:.0f} ms, {iterations} it."
    return Row(
        part=part,
        what=f"{peer.name}: {data.title}, {'C = 1' if C == 1.0 else 'lambda = 0.01 n'}",
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
        best = reference(data, C, 1e-5, arguments.data_dir)
        search = Search(peer, data, C, best, arguments.cap, arguments.data_dir)
        iterations = search.fewest(tol)
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
