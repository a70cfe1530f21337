"""The benchmark of searches: what it counts as memory and processor time, and what it would not let pass."""

import os
import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest

from benchmarks.machine import Watch, cpu_s, processes
from benchmarks.search import CHICLE, OURS, _agreement

HOLD = "import sys, numpy; x = numpy.ones({values}); print(flush=True); sys.stdin.readline()"


def test_processes_are_those_below_with_their_memory_and_time() -> None:
    """A child that holds 80 MiB weighs that much more than one that holds next to nothing."""
    sizes = []
    for values in (1, 10 << 20):
        command = [sys.executable, "-c", HOLD.format(values=values)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert child.pid in processes(os.getpid())
            assert cpu_s(child.pid) > 0
            with Watch(lambda: processes(child.pid), 10.0) as watch:
                sizes.append(watch.first_mib)
            child.communicate("\n")
    assert sizes[1] - sizes[0] == pytest.approx(80, abs=8)


def test_agreement_counts_rows_and_winners() -> None:
    """A difference of 6 of 1000 rows in one score, and two winners."""
    ours = [{"scores": [0.5, 0.9], "best_C": 1.0}, {"scores": [0.5, 0.9], "best_C": 1.0}]
    theirs = [{"scores": [0.5, 0.9], "best_C": 1.0}, {"scores": [0.5, 0.906], "best_C": 2.0}]
    rows, same = _agreement({OURS: ours, CHICLE: theirs}, "fashion", Namespace(quick=True))
    assert np.isclose(rows[2], 6.0)
    assert rows[3].verdict(rows[2]) == "GATE MISSED"
    assert same[3].verdict(same[2]) == "GATE MISSED"
    assert same[3].verdict(1.0) == "target met"
