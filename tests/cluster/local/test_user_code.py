"""Code of a notebook on its way to the tasks: all that it needs goes along, and what cannot is refused by name."""

import fcntl
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.local import user_code
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.cluster.local.staging import SEALS, MappedFiles, StagedFiles, map_file
from chicle_elastic.errors import MissingExtraError, UsageError
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.cluster.notebooks import notebook
from tests.cluster.train_svm import breast_cancer
from tests.solvers import nets
from tests.timeouts import timeout_s

CELLS = (
    "import torch\nfrom torch import nn\nimport torch.nn.functional as F\nWIDTH = 4\nSIZES = {'out': [3]}\n",
    "def squash(x, kind=F.relu):\n    return kind(x) * SCALE\n\nSCALE = 1.0\n",
    """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, WIDTH, 3)
""",
    """
class Mine(Base):
    "A comment."

    def __init__(self, extra=0):
        super().__init__()
        self.out = nn.Linear(WIDTH * 36 + extra, SIZES["out"][0])

    def forward(self, x):
        return self.out(squash(self.conv(x)).flatten(1))
""",
)
TRAINER_CELLS = (
    "from dataclasses import dataclass, field\nfrom typing import Any\n"
    "from chicle_elastic.solvers.linear.trainer import LinearTrainer\n"
    "from chicle_elastic.policies.base import Policy\n"
    "from chicle_elastic.values import Decision, MoveChunks\n",
    "def times(factor):\n    def scale(value):\n        return factor * value\n    return scale\n",
    """
class Told(LinearTrainer):
    "Its figures show what a closure makes of the number of the iteration."
    scaled = staticmethod(times(3.0))

    def figures(self, model, report):
        return {**super().figures(model, report), "told": self.scaled(report.iteration)}
""",
    """
class Once(Policy):
    "Moves a chunk when what it was given says so; its settings are no JSON."
    def __init__(self, when):
        self.when, self.words = when, {1, 2}

    def decide(self, observations):
        first, second = sorted(observations.num_chunks)
        if not self.when(observations) or len(self.words) != 2:
            return None
        return Decision(actions=MoveChunks.of({(first, second): 1}), reason="the notebook says so")
""",
)
LOAD = """
import os, sys
from chicle_elastic.cluster.local import user_code
parts = user_code.load(sys.stdin.buffer.read(), int(sys.argv[1]))
print(eval(sys.argv[2]))
"""


def run(cluster: LocalCluster, **fields: Any) -> Outcome:
    """A job on the breast cancer data."""
    X, y = breast_cancer()
    source = ArraySource(X, y.astype(np.int32), max_tasks=4)
    return cluster.run(Job(source=source, **{"trainer": LinearTrainer(C=0.1), "max_iterations": 500, **fields}))


def in_another_process(expression: str, **parts: Any) -> str:
    """What an expression over `parts` is in a process that has only their pickles."""
    pickles, _ = user_code.dump(parts)
    command = [sys.executable, "-c", LOAD, str(len(parts)), expression]
    return (
        subprocess.run(command, input=pickles, capture_output=True, check=True, timeout=timeout_s(60))
        .stdout.decode()
        .strip()
    )


def test_a_class_of_a_notebook_takes_along_what_it_uses() -> None:
    """Base classes, functions and constants of other cells, the last definition of each, and no lock of another."""
    again = CELLS[-1].replace("+ extra", "+ 2 * extra")
    with notebook(*CELLS, "import threading\nunused = threading.Lock()\n", again) as names:
        kind = names["Mine"]
        assert in_another_process("parts[0](2).out.in_features", module=kind) == str(4 * 36 + 4)
        assert user_code.dump({"module": kind})[1]


def test_instances_closures_and_lambdas_go_along() -> None:
    """A module with its weights, a function with what it closes over, and a class that a function has made."""
    import torch

    def make() -> type:
        class Inner(nets.Tiny):
            """A class of a function."""

            width = 7

        return Inner

    module = make()()
    torch.nn.init.constant_(module.out.bias, 0.25)
    offset = 5
    told = in_another_process(
        "(parts[0].out.bias.tolist(), type(parts[0]).width, parts[1](2))", module=module, function=lambda x: x + offset
    )
    assert told == "([0.25, 0.25, 0.25], 7, 7)"


def test_what_can_be_imported_goes_by_its_name() -> None:
    """No code of it is in the pickle."""
    parts = {"trainer": nets.trainer(), "policy": Rebalance()}
    pickles, has_code = user_code.dump(parts)
    assert not has_code
    assert b"tests.solvers.nets" in pickles
    assert b"forward" not in pickles
    assert user_code.load(pickles, 2) == list(parts.values())


def test_a_module_that_no_import_finds_goes_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has loaded it from a file by itself; the next pickle asks again whether it can be imported."""
    import cloudpickle

    (tmp_path / "chicle_loose.py").write_text("BASE = 2\ndef power(x):\n    return BASE ** x\n")
    spec = importlib.util.spec_from_file_location("chicle_loose", tmp_path / "chicle_loose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "chicle_loose", module)
    spec.loader.exec_module(module)
    assert in_another_process("parts[0](10)", function=module.power) == "1024"
    assert not cloudpickle.list_registry_pickle_by_value()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not user_code.dump({"function": module.power})[1]


def test_what_cannot_be_pickled_is_refused_by_name() -> None:
    """With the part that holds it, and what it is."""
    with socket.socket() as sock, notebook(*TRAINER_CELLS) as names:
        policy = names["Once"](lambda _: bool(sock))
        said = r"the policy 1 Once cannot be sent .* a socket\.socket cannot be .*: policy\.when uses sock .*_getstate_"
        with pytest.raises(UsageError, match=said):
            user_code.dump({"trainer": LinearTrainer(), "policy 1": policy})


class Holding:
    """An object that holds something deep inside."""

    __slots__ = ("table",)

    def __init__(self, what: Any) -> None:
        self.table = {"rows": [1, what]}


LOCK_CELLS = (
    "import threading, functools\nlock, cache = threading.Lock(), {}\n",
    "def guard():\n    with lock:\n        return 1\n",
    """
class Guarded(LinearTrainer):
    def figures(self, model, report):
        return {"guarded": [guard() for _ in range(2)][0]}

class Logging:
    def __init__(self, where):
        self.where = where
""",
)


def test_the_way_to_what_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    """Through methods, functions of other cells, slots, tables and arguments that were bound."""
    import functools
    import threading

    lock = threading.Lock()
    generator = (number for number in range(3))
    with notebook(*TRAINER_CELLS[:1], *LOCK_CELLS) as names, (tmp_path / "log").open("wb") as log:
        for part, way in (
            (names["Guarded"](), r"a _thread\.lock cannot be pickled: trainer\.figures uses guard uses lock \("),
            (names["Logging"](log), r"a _io\.BufferedWriter cannot be pickled: trainer\.where \("),
            (Holding(lock), r"a _thread\.lock cannot be pickled: trainer\.table\['rows'\]\[1\] \("),
            (functools.partial(print, file=log), r"a _io\.BufferedWriter cannot be pickled: trainer\['file'\] \("),
            ((lambda x: lambda: next(x))(generator), r"a generator cannot be pickled: trainer uses x \("),
        ):
            with pytest.raises(UsageError, match=way):
                user_code.dump({"trainer": part})


def test_what_cannot_be_made_in_a_task_is_told(cluster: LocalCluster) -> None:
    """An object whose making needs something that only the driver has."""
    driver = os.getpid()

    class Stubborn(LinearTrainer):
        """Is made in the driver only."""

        def __reduce__(self) -> Any:
            return only_in, (driver,)

    def only_in(process: int) -> LinearTrainer:
        raise LookupError(f"this is not process {process}")

    with pytest.raises(UsageError, match=rf"node n\d: .*made in the tasks.*LookupError: this is not process {driver}"):
        run(cluster, trainer=Stubborn())


def test_without_cloudpickle_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a server runs already, which another process has started."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(MissingExtraError, match=r"'cloudpickle'.* pip install 'chicle-elastic\[cluster\]'"):
        user_code.dump({"trainer": LinearTrainer()})


def test_a_trainer_of_a_notebook_with_a_closure_trains_on_a_cluster(cluster: LocalCluster) -> None:
    """As the trainer that it is made from does."""
    with notebook(*TRAINER_CELLS) as names:
        outcome = run(cluster, trainer=names["Told"](C=0.1))
    told = [record.figures["told"] for record in outcome.history if "told" in record.figures]
    assert told
    assert all(value % 3 == 0 for value in told)
    np.testing.assert_array_equal(outcome.model, run(cluster).model)


def test_a_policy_of_a_notebook_decides_on_a_cluster(cluster: LocalCluster) -> None:
    """An instance with a lambda and a set, on a trainer that goes by its name."""
    with notebook(*TRAINER_CELLS) as names:
        policy = names["Once"](lambda observations: observations.iteration == 3)
        history = run(cluster, trainer=LinearTrainer(C=0.1, tol=0.0), policies=[policy], max_iterations=60).history
    assert any(
        "Once moves" in event and "the notebook says so" in event for record in history for event in record.events
    )


def test_a_task_that_was_given_code_is_not_kept(cluster: LocalCluster) -> None:
    """What the code leaves behind is unknown; agents have none of it."""
    with notebook(*TRAINER_CELLS) as names:
        jobs = [run(cluster, trainer=names["Told"](C=0.1)), run(cluster), run(cluster)]
    members = [job.history.members.values() for job in jobs]
    tasks = [{member.pid for member in each} for each in members]
    assert not tasks[0] & tasks[1]
    assert tasks[1] == tasks[2]
    agents = [{member.agent_pid for member in each} for each in members]
    assert agents[0] == agents[1] == agents[2]


def test_nothing_is_read_from_a_file_that_can_still_be_changed(tmp_path: Path) -> None:
    """Neither from a memory file before it is sealed, or with one seal too few, nor from a file on a disk; and of the
    files that are filled later none is read before all are said to be whole, nor then without a seal."""
    with StagedFiles() as files:
        files.add(np.zeros(3))
        with pytest.raises(UsageError, match="is not sealed"):
            map_file(files.fds[0])
        fcntl.fcntl(files.fds[0], fcntl.F_ADD_SEALS, SEALS & ~fcntl.F_SEAL_WRITE)
        with pytest.raises(UsageError, match="is not sealed"):
            map_file(files.fds[0])
        files.seal(0)
        waits: list[int] = []
        memory = MappedFiles(files.fds, lambda: waits.append(len(waits)))
        assert not memory[0].any()
        assert not waits
        with pytest.raises(UsageError, match="is not sealed"):
            memory[1]
        files.fill()
        assert all(len(memory[file]) == 1 for file in range(1, len(files.fds)))
        assert waits == [0, 1]
    with open(tmp_path / "data", "w+b") as disk, pytest.raises(UsageError, match="is not sealed"):
        map_file(disk.fileno())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_nothing_is_read_from_a_file_of_another_user() -> None:
    """However sealed it is."""
    with StagedFiles() as files:
        files.add(np.zeros(3))
        files.seal(0)
        os.fchown(files.fds[0], 65534, 65534)
        with pytest.raises(UsageError, match="belongs to another user"):
            map_file(files.fds[0])
