"""The launcher as a program."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from chicle_elastic.cluster.rendezvous.store import StoreServer, connect_store
from chicle_elastic.transports.secret import JobSecret
from tests.cluster.cluster_harness import SCRIPT
from tests.harness.forked import children_of, is_alive
from tests.programs import run, run_python
from tests.timeouts import comes, timeout_s

MOST_KIB = 80 << 10
LAUNCH = [sys.executable, "-m", "chicle_elastic.launch"]


def test_the_store_alone_serves_until_a_signal_and_makes_the_secret(tmp_path: Path) -> None:
    """It prints where it listens, and never the secret."""
    secret_file = tmp_path / "job.secret"
    command = [*LAUNCH, "--store-only", "--rdzv-endpoint", "127.0.0.1:0", "--secret-file", str(secret_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        line = host.stdout.readline()
        assert line.startswith("rendezvous store at 127.0.0.1:")
        store = connect_store(line.split()[-1])
        store.set("key", "value")
        assert store.get("key") == b"value"
        assert stat.S_IMODE(os.stat(secret_file).st_mode) == 0o600
        JobSecret.load(secret_file)
        host.send_signal(signal.SIGTERM)
        out, errors = host.communicate(timeout=timeout_s(20))
    assert host.returncode == 0, errors
    assert secret_file.read_text().strip() not in line + out + errors


def test_the_store_listens_and_is_found_where_the_options_say(tmp_path: Path) -> None:
    """On all addresses, at a port of the range; what it prints is what nodes are to be given."""
    command = [*LAUNCH, "--store-only", "--rdzv-endpoint", "127.0.0.1:0", "--secret-file", str(tmp_path / "s")]
    options = ["--host", "::", "--advertise", "driver.example", "--port-range", "21610-21619"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        name, port = host.stdout.readline().split()[-1].split(":")
        assert name == "driver.example"
        assert 21610 <= int(port) <= 21619
        for address in ("127.0.0.1", "[::1]"):
            connect_store(f"{address}:{port}").set("key", "value")
        host.send_signal(signal.SIGINT)
        _, errors = host.communicate(timeout=timeout_s(20))
    assert host.returncode == 0, errors
    assert "listens on all addresses of this host (::)" in errors


def test_a_mistake_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    """No traceback for what the user can mend."""
    options = ["--rdzv-endpoint", "192.0.2.1:29400", "--secret-file", str(tmp_path / "nowhere.secret")]
    ended = run(*LAUNCH, *options, "train.py", code=2)
    assert "nowhere.secret cannot be read" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_log_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    """A file has its name."""
    JobSecret.create(tmp_path / "job.secret")
    with StoreServer() as store:
        options = ["--rdzv-endpoint", store.endpoint, "--secret-file", str(tmp_path / "job.secret")]
        ended = run(*LAUNCH, *options, "--log-dir", tmp_path / "job.secret", "train.py", code=2)
    assert f"--log-dir {tmp_path / 'job.secret'}: File exists" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_agent_has_no_torch_and_is_small(tmp_path: Path) -> None:
    """It waits for a second node, with an event file, a recording and metrics; its task is another process."""
    JobSecret.create(tmp_path / "job.secret")
    with StoreServer() as store:
        options = ["--nnodes", "2", "--name", "n0", "--rdzv-endpoint", store.endpoint, "--metrics", "0"]
        options += ["--secret-file", str(tmp_path / "job.secret"), "--log-dir", str(tmp_path)]
        with subprocess.Popen([*LAUNCH, *options, str(SCRIPT), "--out", str(tmp_path)], stderr=subprocess.PIPE) as node:
            assert node.stderr is not None
            while b"n0: waits for 1 more node of 2" not in (line := node.stderr.readline()) and line:
                pass
            process = Path(f"/proc/{node.pid}")
            maps, status = ((process / name).read_text() for name in ("maps", "status"))
            node.send_signal(signal.SIGINT)
            node.communicate(timeout=timeout_s(30))
    assert node.returncode == 128 + signal.SIGINT
    assert "libtorch" not in maps
    [resident_kib] = re.findall(r"VmRSS:\s+(\d+) kB", status)
    assert int(resident_kib) <= MOST_KIB


def test_the_log_of_an_agent_may_be_lines_of_json(tmp_path: Path) -> None:
    """Each has the job, the node and the round; a traceback is a field."""
    JobSecret.create(tmp_path / "job.secret")
    with StoreServer() as store:
        options = ["--name", "n0", "--rdzv-endpoint", store.endpoint, "--json-log", "--rdzv-id", "job7"]
        options += ["--secret-file", str(tmp_path / "job.secret")]
        options += ["--redirects", "2"]  # else the task's own traceback may break a line
        ended = run(*LAUNCH, *options, str(SCRIPT), "--out", str(tmp_path), "--raise-at", "1", code=1)
    lines = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert {(line["job"], line["node"]) for line in lines} == {("job7", "n0")}
    assert "chicle: n0: joined: 1 node in the job" in [line["message"] for line in lines]
    [failed] = [line for line in lines if line["level"] == "ERROR" and "the task of n0 has failed" in line["message"]]
    assert failed["round"] == 1
    assert "the user's code is at fault" in failed["message"]


def test_the_installed_entry_point_is_the_handler_of_the_checkout() -> None:
    """What makes `torchrun --rdzv-backend chicle` work."""
    from importlib.metadata import entry_points

    from chicle_elastic.cluster.rendezvous import torchrun_plugin

    (plugin,) = entry_points(group="torchrun.handlers", name="chicle")
    assert plugin.load() is torchrun_plugin.torchrun_handler
    assert torchrun_plugin.torchrun_handler() is torchrun_plugin.create


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_that_parses_ends_with_its_agent(number: signal.Signals, tmp_path: Path) -> None:
    """Whoever waits for the end of the output would wait for its import of torch, seconds after the agent has ended."""
    options = ["--rdzv-endpoint", "127.0.0.1:1", "--secret-file", str(tmp_path / "job.secret"), "train.py"]
    with subprocess.Popen([*LAUNCH, *options], stderr=subprocess.PIPE) as node:
        assert comes(lambda: children_of(node.pid), poll_s=0.001)
        [child] = children_of(node.pid)
        node.send_signal(number)
        node.wait(timeout=timeout_s(20))
        assert comes(lambda: not is_alive(child), 0.5)


def test_text_that_waits_to_be_printed_is_printed_once() -> None:
    """The process that parses begins with a copy of it."""
    words = "from chicle_elastic.cluster import launcher; print('kiwi'); launcher.main(['--help'])"
    assert run_python("-c", words, PYTHONUNBUFFERED="").stdout.count("kiwi") == 1


def test_a_failed_task_is_a_failure_where_sigchld_was_ignored(tmp_path: Path) -> None:
    """The program that starts the launcher may ignore it, and the kernel keeps no exit codes then."""
    JobSecret.create(tmp_path / "job.secret")
    (tmp_path / "task.py").write_text("raise SystemExit(3)")
    words = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    words += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    with StoreServer() as store:
        options = ["--rdzv-endpoint", store.endpoint, "--secret-file", str(tmp_path / "job.secret")]
        ended = run_python("-c", words, *LAUNCH[1:], *options, "--max-restarts", "0", tmp_path / "task.py", code=None)
    assert (ended.returncode, "it ended with exit code 3" in ended.stderr) == (1, True), ended.stderr
