"""Plain torchrun with our handler: torch's own agent, which calls no rounds, and restarts its tasks."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from chicle_elastic.cluster.rendezvous import spares
from chicle_elastic.cluster.rendezvous.errors import JobClosedError, RoundTimeoutError
from chicle_elastic.cluster.rendezvous.handler import create_handler
from chicle_elastic.cluster.rendezvous.store import StoreServer, parse_endpoint
from chicle_elastic.errors import UsageError
from tests.cluster.rendezvous.rendezvous_agents import party, results, start, wait_for_a_place
from tests.harness.forked import Forked
from tests.timeouts import comes, timeout_s

TASK = """
import datetime, json, os, pathlib, sys, time
import torch, torch.distributed as dist
folder = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
name = f"{os.environ['TORCHELASTIC_RUN_ID']}-{dist.get_world_size()}-{dist.get_rank()}"
draft = folder / f".{name}-{os.getpid()}"
draft.write_text(json.dumps(total.item()))
draft.rename(folder / name)
while not (folder / "stop").exists():
    time.sleep(0.02)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_nodes_form_a_round_and_a_third_joins(tmp_path: Path) -> None:
    """The case that torch's own handler never completes with its default settings."""
    script = tmp_path / "task.py"
    script.write_text(TASK)
    with StoreServer() as host, _torchrun(host, tmp_path, "2:3", script) as start_node:
        start_node()
        start_node()
        assert _wait_for(tmp_path / "job-2-0") == _wait_for(tmp_path / "job-2-1") == 3.0
        start_node()
        assert [_wait_for(tmp_path / f"job-3-{rank}") for rank in range(3)] == [6.0, 6.0, 6.0]
        (tmp_path / "stop").touch()


def test_the_first_round_waits_a_moment_for_more_than_the_least() -> None:
    """Enough are there, and then nobody else comes."""
    with party() as cluster:
        handlers = [cluster.handler(name, min_nodes=2, max_nodes=4, last_call_s=0.3) for name in ("n0", "n1", "n2")]
        infos = results([start(handler) for handler in handlers])
        assert {info.world_size for info in infos} == {3}
        places = {(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}
        assert len(places) == 1, "all tasks meet at the port of rank 0"
        assert places != {parse_endpoint(cluster.host.endpoint)}


def test_a_round_of_the_greatest_number_is_complete_at_once() -> None:
    """No last call: there is no place for anybody else."""
    with party() as cluster:
        handlers = [cluster.handler(f"n{index}", min_nodes=2, max_nodes=2, last_call_s=600) for index in range(2)]
        assert {info.world_size for info in results([start(handler) for handler in handlers])} == {2}


def test_who_comes_late_is_counted_as_waiting_and_let_in_by_the_next_round() -> None:
    """torch's agents poll the count and come again when it is not zero; then no last call is needed."""
    with party() as cluster:
        first, second, joiner = (cluster.handler(f"n{index}", min_nodes=2, last_call_s=0.1) for index in range(3))
        results([start(first), start(second)])
        assert [first.num_nodes_waiting(), second.num_nodes_waiting()] == [0, 0]
        late = start(joiner)
        assert comes(lambda: first.num_nodes_waiting() == 1)
        again = start(first)
        assert comes(lambda: second.num_nodes_waiting() == 1)
        infos = results([again, start(second), late])
        assert {info.world_size for info in infos} == {3}
        assert {infos[0].rank, infos[1].rank} == {0, 1}, "who came first in the first round is a race"
        assert infos[2].rank == 2
        assert {handler.num_nodes_waiting() for handler in (first, second, joiner)} == {0}


def test_a_waiting_node_that_falls_silent_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its host is gone, so no connection ends; torch's agents would begin a round for it, which waits for it."""
    monkeypatch.setattr(spares, "SILENT_S", 2.0)
    with party() as cluster:
        cluster.secret.save(tmp_path / "secret")
        first, second = (cluster.handler(f"n{index}", min_nodes=2, last_call_s=0.1) for index in range(2))
        results([start(first), start(second)])
        spare = Forked(wait_for_a_place, cluster.host.endpoint, tmp_path / "secret", output=tmp_path / "out")
        try:
            assert comes(lambda: first.num_nodes_waiting() == 1)
            spare.send_signal(signal.SIGSTOP)
            assert comes(lambda: first.num_nodes_waiting() == 0)
        finally:
            spare.kill_all()
            spare.close()
        assert "n2 waited for a place, and is dropped: silent for 2 s" in caplog.text
        results([start(first), start(second)])
        assert "begins without" not in caplog.text


def test_who_does_not_come_back_is_waited_for_until_the_last_call(caplog: pytest.LogCaptureFixture) -> None:
    """It may be dead; nobody told anybody."""
    with party() as cluster:
        handlers = [cluster.handler(f"n{index}", last_call_s=0.2) for index in range(3)]
        results([start(handler) for handler in handlers])
        assert {info.world_size for info in results([start(handler) for handler in handlers[:2]])} == {2}
        assert "round 2 begins without n2, which did not come for" in caplog.text


def test_shutdown_closes_the_rendezvous_as_torch_s_own_does() -> None:
    """The first to finish says so to those who would come back."""
    with party() as cluster:
        first, second = (cluster.handler(f"n{index}", last_call_s=0.1) for index in range(2))
        results([start(handler) for handler in (first, second)])
        assert not first.is_closed()
        assert second.shutdown()
        with pytest.raises(JobClosedError):
            results([start(first)])


def test_too_few_nodes_are_an_error_after_the_join_time_out() -> None:
    """With what to do."""
    with party() as cluster:
        handler = cluster.handler("n0", min_nodes=2, join_timeout_s=0.1)
        with pytest.raises(RoundTimeoutError, match="start more nodes, or allow fewer"):
            results([start(handler)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no job secret: set CHICLE_SECRET_FILE"),
        ({"secret_file": "job.secret", "is_host": "1"}, "a node may leave, and so never serves the rendezvous store"),
        ({"secret_file": "job.secret", "join_timeout": "soon"}, "join_timeout=soon has to be a number of seconds"),
    ],
)
def test_options_that_cannot_work_are_refused(
    options: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the process that they were given to, before it connects."""
    monkeypatch.delenv("CHICLE_SECRET_FILE", raising=False)
    with pytest.raises(UsageError, match=message):
        create_handler(RendezvousParameters("chicle", "127.0.0.1:1", "job", 1, 2, **options))


@contextlib.contextmanager
def _torchrun(host: StoreServer, folder: Path, nnodes: str, script: Path) -> Iterator[Callable[[], None]]:
    """Starts nodes with plain torchrun; all of them have ended well when the block is left."""
    environ = os.environ | {"CHICLE_SECRET_FILE": str(folder / "job.secret"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", nnodes, "--rdzv-backend", "chicle"]
    command += ["--rdzv-id", "job", "--rdzv-endpoint", host.endpoint, "--rdzv-conf", "last_call_timeout=0.3"]
    nodes: list[subprocess.Popen[str]] = []

    def start_node() -> None:
        nodes.append(
            subprocess.Popen(
                [*command, str(script), str(folder)],
                env=environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    try:
        yield start_node
        for node in nodes:
            _, errors = node.communicate(timeout=timeout_s(60))
            assert node.returncode == 0, errors
    finally:
        for node in nodes:
            if node.poll() is None:
                node.terminate()
            node.communicate()


def _wait_for(path: Path) -> float:
    """What a task wrote."""
    assert comes(path.exists)
    return float(json.loads(path.read_text()))
