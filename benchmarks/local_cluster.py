"""How long `ChicleSVM(n_workers=4).fit` takes on 10,000 rows, and what its processes weigh.

Cold: in a fresh interpreter, start and stop of the cluster included, imports of scikit-learn and the data not. On a
reused cluster: the median of several fits after it. Memory: of each process of the cluster in the middle of a fit, its
proportional share (PSS: pages that processes share are divided among them) and what is its own (USS).

    python -m benchmarks.local_cluster [--workers N] [--fits N] [--json FILE]

Exit code 1 when a bar is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MAX_COLD_S = 3.5
MAX_REUSED_S = 0.3
ROWS, FEATURES, C = 10_000, 20, 1e-2


def data() -> tuple[Any, Any]:
    """10,000 standardised rows of two overlapping classes."""
    from sklearn.datasets import make_classification
    from sklearn.preprocessing import scale

    X, y = make_classification(ROWS, FEATURES, random_state=0)
    return scale(X), y


def measure(workers: int, fits: int) -> dict[str, Any]:
    """The figures of one interpreter."""
    from chicle_elastic.cluster.local.local_cluster import LocalCluster
    from estimators import ChicleSVM

    X, y = data()
    start_s = time.perf_counter()
    with LocalCluster(workers) as cluster:
        ChicleSVM(C=C, runtime=cluster, random_state=0).fit(X, y)
        first_s = time.perf_counter() - start_s
        reused_s, iterations, first_iteration_s = [], [], []
        for seed in range(fits):
            fit_s = time.perf_counter()
            model = ChicleSVM(C=C, runtime=cluster, random_state=seed).fit(X, y)
            reused_s.append(time.perf_counter() - fit_s)
            iterations.append(model.n_iter_)
            first_iteration_s.append(model.history_[0].time_s)
        weights: dict[str, list[float]] = {}

        def weigh(_: Any) -> None:
            if not weights:
                weights.update(memory_of_cluster(cluster))

        watch(cluster, X, y, weigh)
        stop_s = time.perf_counter()
    stop_s = time.perf_counter() - stop_s
    one_s = time.perf_counter()
    ChicleSVM(C=C, random_state=0).fit(X, y)
    return {
        "cold_s": first_s + stop_s,
        "first_fit_s": first_s,
        "stop_s": stop_s,
        "reused_s": statistics.median(reused_s),
        "reused_worst_s": max(reused_s),
        "iterations": statistics.median(iterations),
        "first_iteration_s": statistics.median(first_iteration_s),
        "in_process_first_fit_s": time.perf_counter() - one_s,
        "memory_mib": weights,
    }


def watch(cluster: Any, X: Any, y: Any, tell: Any) -> None:
    """A job that tells of its iterations."""
    import numpy as np

    from chicle_elastic.chunks.sources import ArraySource
    from chicle_elastic.runtime.training.job import Job
    from chicle_elastic.solvers.linear.trainer import LinearTrainer

    source = ArraySource(X, y.astype(np.int32), max_tasks=cluster.most_tasks())
    cluster.run(Job(trainer=LinearTrainer(C=C), source=source, max_iterations=50, on_iteration=tell))


def memory_of_cluster(cluster: Any) -> dict[str, list[float]]:
    """[PSS, USS] in MiB of the server, and of each agent and task."""
    members = cluster.members()
    pids = {f"agent {name}": member.agent_pid for name, member in members.items()}
    pids |= {f"task {name}": member.pid for name, member in members.items() if member.pid}
    pids["server"] = os.getsid(next(iter(members.values())).agent_pid)
    return {name: memory_mib(pid) for name, pid in sorted(pids.items())}


def memory_mib(pid: int) -> list[float]:
    """PSS and USS of a process, in MiB."""
    fields: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size, *_ = line.split()
        fields[name.rstrip(":")] = int(size)
    own = fields["Private_Clean"] + fields["Private_Dirty"]
    return [round(fields["Pss"] / 1024, 1), round(own / 1024, 1)]


def main() -> int:
    """Measure in a fresh interpreter, print, and compare with the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--fits", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(measure(arguments.workers, arguments.fits)))
        return 0
    command = [sys.executable, "-m", "benchmarks.local_cluster", "--inside"]
    command += ["--workers", str(arguments.workers), "--fits", str(arguments.fits)]
    result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{ROWS:,} rows x {FEATURES}, C={C:g}, {arguments.workers} nodes, {os.cpu_count()} cores")
    print(f"cold, start and stop included  {result['cold_s']:.2f} s  (bar {MAX_COLD_S} s)")
    print(
        f"on a reused cluster            {result['reused_s']:.3f} s  (bar {MAX_REUSED_S} s; worst "
        f"{result['reused_worst_s']:.3f} s, {result['iterations']:.0f} iterations, the first ends after "
        f"{result['first_iteration_s']:.3f} s)"
    )
    for name, (pss, uss) in result["memory_mib"].items():
        print(f"{name:<12} {pss:6.1f} MiB share, {uss:6.1f} MiB of its own")
    return int(result["cold_s"] > MAX_COLD_S or result["reused_s"] > MAX_REUSED_S)


if __name__ == "__main__":
    sys.exit(main())
