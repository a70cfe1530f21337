"""Whole fits of ours and of the peers with one task, alternated: the time of ours over that of the best peer."""

import argparse
from collections.abc import Mapping

from benchmarks.bars import Row
from benchmarks.fits import Seconds, median, timed_fit
from benchmarks.glm_bars import reached, speed_bar
from benchmarks.ours import OurFit, fit_ours
from benchmarks.peers import Peer, Search
from benchmarks.problems import Problem, primal
from benchmarks.references import Reference

HOPELESS = 4.0
"""Times the best peer so far, beyond which no longer fit of another one is tried: the best is all that counts."""
CONTENDER = 2.0
"""Times the fastest found beforehand, up to which a peer is timed against ours."""
CLOSE_S = 0.05
"""Where the best peer is that fast, chance decides between the times of single fits, and no peer is given up."""
LEAST_S, MOST_REPEATS = 0.5, 15
"""Short fits are repeated until ours has run that long in all."""
LONG_S = 5.0
"""A fit of ours that takes longer is neither warmed up for nor repeated: what that could change is far from any bar."""


def search_all(searches: Mapping[Peer, Search], tol: float, cap_s: float) -> tuple[dict[Peer, int], dict[Peer, str]]:
    """Fewest iterations of every peer that gets there, and words about every other one."""
    charged: dict[Peer, int] = {}
    others: dict[Peer, str] = {}
    best_s = cap_s / HOPELESS
    for peer, search in searches.items():
        limit_s = min(cap_s, max(HOPELESS * best_s, CLOSE_S))
        iterations = search.fewest(tol, limit_s)
        if iterations is None:
            others[peer] = f"not reached in {limit_s:.3g} s ({search.most_tried()} it.)"
        else:
            charged[peer] = iterations
            best_s = min(best_s, search.seconds(iterations))
    return charged, others


def verified(fit: OurFit, problem: Problem, tol: float, best: Reference) -> float:
    """Relative suboptimality of ours; the benchmark computes it itself.

    Raises:
        SystemExit: The certificate says tol and the objective says otherwise, so no figure can be trusted.
    """
    objective = primal(problem, fit.model.coef_)
    best.note(problem, objective)
    suboptimality = best.suboptimality(objective)
    if fit.has_converged and suboptimality > tol * 1.001:
        raise SystemExit(
            f"{problem.title}: ours certified a gap of {fit.model.duality_gap_:.1e}, and its objective is "
            f"{suboptimality:.1e} above that of a better model: the certificate is wrong"
        )
    return suboptimality


def time_sides(
    problem: Problem,
    tol: float,
    arguments: argparse.Namespace,
    searches: Mapping[Peer, Search],
    charged: Mapping[Peer, int],
) -> tuple[OurFit, list[Seconds], dict[Peer, list[Seconds]]]:
    """Fits in turn: the last one of ours, all times of ours, and those of each peer that could be the best."""
    least_s = min((searches[peer].seconds(iterations) for peer, iterations in charged.items()), default=0.0)
    contenders = {
        peer: iterations
        for peer, iterations in charged.items()
        if searches[peer].seconds(iterations) <= CONTENDER * least_s + 1e-3
    }
    ours: list[Seconds] = []
    theirs: dict[Peer, list[Seconds]] = {peer: [] for peer in contenders}
    is_warm = False
    while True:
        fit = fit_ours(problem, tol, max_iter=arguments.max_iter_one, limit_s=arguments.our_cap)
        ours.append(fit.seconds)
        for peer, times in theirs.items():
            times.append(timed_fit(searches[peer].make(contenders[peer]), problem.data))
        if not fit.has_converged or fit.seconds.cpu > LONG_S:
            return fit, ours, theirs
        if not is_warm:
            is_warm = True
            for times in (ours, *theirs.values()):
                times.clear()
        elif len(ours) >= arguments.repeats:
            is_short = sum(seconds.cpu for seconds in ours) < LEAST_S
            if arguments.quick or not is_short or len(ours) >= MOST_REPEATS:
                return fit, ours, theirs


def compare_one_task(
    problem: Problem,
    tol: float,
    arguments: argparse.Namespace,
    searches: Mapping[Peer, Search],
    best: Reference,
) -> tuple[Row, OurFit]:
    """The row of one task, and the fit for the rows of several to be held against."""
    charged, others = search_all(searches, tol, arguments.cap)
    fit, our_times, peer_times = time_sides(problem, tol, arguments, searches, charged)
    suboptimality = verified(fit, problem, tol, best)
    our_s = median(our_times, "cpu")
    medians = {peer: median(times, peer.clock) for peer, times in peer_times.items()}
    if medians:
        winner = min(medians, key=lambda peer: medians[peer])
        best_s, bar = medians[winner], speed_bar(medians[winner])
        against = f"{winner.name}: {best_s * 1e3:.1f} ms, {charged[winner]} it."
    else:
        best_s, bar = arguments.cap, speed_bar(arguments.cap)
        against = f"no peer in {arguments.cap:g} s" if searches else "no peer"
    in_doubt = f"; P* to {best.width:.0e} only" if best.width > 0.1 * tol else ""
    row = Row(
        part="one task",
        what=f"{problem.title}: time",
        tol=tol,
        measured=f"{our_s * 1e3:.1f} ms, {fit.text()}",
        against=against + in_doubt,
        value=reached(our_s / best_s, fit.has_converged),
        bar=bar,
        details={
            "data": problem.data.key,
            "loss": problem.loss,
            "C": problem.C,
            "tasks": 1,
            "is_ahead": fit.has_converged and our_s <= best_s,
            "reference_width": best.width,
            "ours": {**fit.details(), "suboptimality": suboptimality, "all_cpu_s": [s.cpu for s in our_times]},
            "peers": {
                **{peer.name: {"iterations": charged[peer], "cpu_s": medians[peer]} for peer in medians},
                **{
                    peer.name: {"iterations": iterations, "cpu_s_of_the_search": searches[peer].seconds(iterations)}
                    for peer, iterations in charged.items()
                    if peer not in medians
                },
                **{peer.name: words for peer, words in others.items()},
            },
        },
    )
    return row, fit
