"""Torch's private names: what is checked at import, and the agent that is built on them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from chicle_elastic.cluster.agent.torch_private import check_signature
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.errors import IncompatibleVersionError
from chicle_elastic.versions import TRIED
from tests.timeouts import timeout_s


def _start(self: object, worker_group: object) -> None:
    pass


def _start_with_more(self: object, worker_group: object, is_restart: bool = False) -> None:
    pass


def _start_with_other(self: object, group: object) -> None:
    pass


def _start_with_demand(self: object, worker_group: object, store: object) -> None:
    pass


EXPECTED = ("self", "worker_group")


def test_a_changed_signature_names_the_version_found_and_those_tested() -> None:
    """Instead of a TypeError in the middle of a job."""
    for function in (_start_with_other, _start_with_demand):
        with pytest.raises(IncompatibleVersionError) as caught:
            check_signature(function, EXPECTED, exactly=False)
        message = str(caught.value)
        assert f"torch {torch.__version__} has changed" in message
        assert f"{function.__name__}(self, " in message
        assert all(version in message for version in TRIED["torch"])


def test_a_new_parameter_with_a_default_matters_only_where_torch_calls_us() -> None:
    """What is called goes on working; an override would not get the new argument."""
    check_signature(_start, EXPECTED, exactly=True)
    check_signature(_start_with_more, EXPECTED, exactly=False)
    with pytest.raises(IncompatibleVersionError):
        check_signature(_start_with_more, EXPECTED, exactly=True)


def test_a_torch_that_lost_a_name_fails_the_import(tmp_path: Path) -> None:
    """The check runs when the module is imported, in a process of its own here."""
    program = (
        "from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent as Agent\n"
        "Agent._start_workers = lambda self, group, flag: None\n"
        "import chicle_elastic.cluster.agent.torch_private\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout_s(60), check=False
    )
    assert ended.returncode == 1
    assert "IncompatibleVersionError: torch" in ended.stderr
    assert hasattr(LocalElasticAgent, "_start_workers")


@pytest.mark.parametrize(("exit_code", "agent_code"), [(0, 0), (3, 1)])
def test_a_task_is_kept_through_rounds_and_its_exit_code_is_the_node_s(
    exit_code: int, agent_code: int, tmp_path: Path
) -> None:
    """One process, three rendezvous, torch's launcher around it."""
    script = tmp_path / "task.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "output = pathlib.Path(os.environ['SMALL_AGENT_OUTPUT'])\n"
        "while not output.exists() or not output.read_text(): time.sleep(0.01)\n"
        f"sys.exit({exit_code})\n"
    )
    output = tmp_path / "output.json"
    with StoreServer() as host:
        options = ["--rdzv-endpoint", host.endpoint, "--secret-file", str(tmp_path / "job.secret"), "--name", "n0"]
        ended = subprocess.run(
            [sys.executable, "-m", "tests.cluster.small_agents", str(output), *options, str(script)],
            capture_output=True,
            text=True,
            timeout=timeout_s(60),
            check=False,
        )
    assert ended.returncode == agent_code, ended.stderr
    seen = json.loads(output.read_text())
    assert seen["rounds"] == [[0, 1, True, seen["pid"]]] * 3
