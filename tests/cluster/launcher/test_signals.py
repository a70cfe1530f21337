"""A signal ends a command of the cluster whenever it arrives, also as the first process of a container."""

import signal
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.start_signals import of_node
from chicle_elastic.transports.secret import JobSecret
from tests.cluster.cluster_harness import SCRIPT
from tests.cluster.launcher.first_process import FirstProcess, needs_namespaces

pytestmark = needs_namespaces()
LEFT = 143


def node(folder: Path, endpoint: str, *, before: tuple[str, ...] = ()) -> FirstProcess:
    """A node that waits for a second one."""
    JobSecret.load_or_create(folder / "job.secret")
    options = ["--rdzv-endpoint", endpoint, "--secret-file", str(folder / "job.secret"), "--log-dir", str(folder)]
    options += ["--nnodes", "2", "--name", "n0", "--leave-exit-code", str(LEFT)]
    arguments = ["chicle_elastic.launch", *options, str(SCRIPT), "--out", str(folder)]
    return FirstProcess(arguments, folder / "output", before=before)


def test_a_notice_before_python_runs_waits_where_it_is_blocked(tmp_path: Path) -> None:
    """Without that the kernel drops it, and the node would be killed at the end of its grace period."""
    with node(tmp_path, "127.0.0.1:1", before=("env", "--block-signal=TERM")) as process:
        process.wait_until(lambda: process.blocks(signal.SIGTERM))
        assert not process.handles(signal.SIGTERM)
        process.send(signal.SIGTERM)
        assert process.exit_code() == LEFT, process.output()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_notice_before_torch_is_there_ends_a_node(number: signal.Signals, tmp_path: Path) -> None:
    """The handlers are the first thing that the command does."""
    with node(tmp_path, "127.0.0.1:1") as process:
        process.wait_until(lambda: process.handles(number))
        assert not process.has_loaded("libtorch")
        process.send(number)
        assert process.exit_code() == LEFT, process.output()


def test_a_notice_while_torch_is_imported_ends_a_node(tmp_path: Path) -> None:
    """A child of it imports torch, to parse the command line."""
    with node(tmp_path, "127.0.0.1:1") as process:
        process.wait_until(lambda: process.has_loaded("libtorch"))
        process.send(signal.SIGTERM)
        assert process.exit_code() == LEFT, process.output()


def test_a_notice_while_a_node_waits_for_others_ends_it_with_the_code_for_leaving(tmp_path: Path) -> None:
    """It is a member by then, says what it waits for, and nothing trains yet."""
    with StoreServer() as store, node(tmp_path, store.endpoint) as process:
        process.wait_until(lambda: "n0: waits for 1 more node of 2 (2:2)" in process.output())
        process.send(signal.SIGTERM)
        assert process.exit_code() == LEFT, process.output()


def test_a_node_that_waits_for_its_anchor_ends_at_a_notice(tmp_path: Path) -> None:
    """It polls a folder for up to ten minutes."""
    options = ["--run", str(tmp_path / "run"), "--nnodes", "1:2", "--name", "n0", "--log-dir", str(tmp_path)]
    arguments = ["torchx_components.node", *options, "--leave-exit-code", str(LEFT), "estimators.fit_task"]
    with FirstProcess(arguments, tmp_path / "output") as process:
        process.wait_until(lambda: process.handles(signal.SIGTERM))
        process.send(signal.SIGTERM)
        assert process.exit_code() == LEFT, process.output()


def test_an_anchor_ends_at_sigterm(tmp_path: Path) -> None:
    """While it starts, and while it serves, with its members and without its folder."""
    np.savez(tmp_path / "data.npz", X=np.random.default_rng(0).normal(size=(100, 3)), y=np.arange(100) % 2)
    options = ["-j", "2", "--train", str(tmp_path / "data.npz"), "--out", str(tmp_path / "out"), "time", "60"]
    for moment in ("starting", "serving"):
        with FirstProcess(["torchx_components.anchor", *options], tmp_path / "output") as process:
            process.wait_until(lambda: process.handles(signal.SIGTERM))
            if moment == "serving":
                process.wait_until(lambda: "node-1 has process" in process.output())
            process.send(signal.SIGTERM)
            assert process.exit_code() == LEFT, process.output()
    assert not list((tmp_path / "out").glob(".run-*"))


def test_the_exit_code_for_leaving_is_found_in_an_unparsed_command_line() -> None:
    """It is needed before the parser is there; the parser refuses what is none."""
    assert of_node(["--leave-exit-code", "143", "train.py"])[signal.SIGTERM] == 143
    assert of_node(["--leave-exit-code=75"])[signal.SIGUSR1] == 75
    for argv in (["train.py"], ["--leave-exit-code"], ["--leave-exit-code", "x"], ["--leave-exit-code=256"]):
        assert of_node(argv)[signal.SIGTERM] == 0
    assert of_node([])[signal.SIGINT] == 130
