"""torchrun's options about the task, by real agents: what it runs, its environment, and where its output goes."""

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.cluster_harness import LocalAgents
from tests.harness.forked import is_alive
from tests.timeouts import comes

TASK = """
import json, os, pathlib, sys, time
print("apple out"), print("err", file=sys.stderr)
found = {"argv": sys.argv, "environ": dict(os.environ), "name": __name__, "python": sys.executable, "pid": os.getpid()}
draft = pathlib.Path(sys.argv[1] + ".draft")
draft.write_text(json.dumps(found))
draft.rename(sys.argv[1])
if "wait" in sys.argv:
    time.sleep(600)
if "raise" in sys.argv:
    raise ValueError("boom")
sys.exit(3)
"""
RECORDED = "from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main():\n  {}\nmain()"
PLUGIN = """
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
class Specs(DefaultLogsSpecs):
    def reify(self, envs):
        found = super().reify(envs)
        envs[0]["TOLD_BY_PLUGIN"] = "yes"
        return found
"""
STDOUT, STDERR = "attempt_0/0/stdout.log", "attempt_0/0/stderr.log"


class Ended(NamedTuple):
    """What an agent and its task have left."""

    code: int | None
    console: str
    files: dict[str, str]  # of the log folder, by their paths in the folder of the run
    task: dict[str, Any]  # what the task wrote about itself


def run(
    folder: Path,
    *options: str,
    script: tuple[str, ...] = (),
    environ: dict[str, str] | None = None,
    before: Callable[[], object] | None = None,
) -> Ended:
    """Run a node whose task fails at once; its log folder is `logs`."""
    (folder / "task.py").write_text(TASK)
    told = str(folder / "told")
    script = script or (str(folder / "task.py"), told)
    places = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]), "TMPDIR": str(folder)}
    with LocalAgents(folder, script=script, has_log_dir=False, environ={**places, **(environ or {})}) as cluster:
        agent = cluster.start("n0", options=("--rdzv-id", "job7", "--max-restarts", "0", *options), before=before)
        code = agent.wait_for_end()
    logs = [path for path in folder.rglob("*") if path.is_file() and "attempt_" in str(path)]
    files = {str(path)[str(path).index("attempt_") :]: path.read_text() for path in logs}
    task = json.loads(Path(told).read_text()) if Path(told).exists() else {}
    return Ended(code, agent.output(), files, task)


def add_to_path(folder: str) -> None:
    """Let Python find what is installed in a folder."""
    sys.path.insert(0, folder)


@pytest.mark.parametrize(
    ("options", "console", "files"),
    [
        ("", ("apple out", "err"), {}),
        ("--local-ranks-filter 1", (), {}),
        ("-r 3 --log-dir {logs}", (), {STDOUT: "apple out\n", STDERR: "err\n"}),
        ("--redirects 0:1 --log_dir {logs}", ("err",), {STDOUT: "apple out\n"}),
        ("-r 1:3 --log-dir {logs}", ("apple out", "err"), {}),  # another rank's
        ("-r 2", ("apple out",), {STDERR: "err\n"}),  # into a temporary folder
        ("-t 3 --role trainer --log-dir {logs}", ("[trainer0]:apple out", "[trainer0]:err"), {STDOUT: "apple out\n"}),
        ("--tee 0:1 --redirects 2 --log-dir {logs}", ("[default0]:apple out",), {STDERR: "err\n"}),
        ("-t 3 --local-ranks-filter 1,2 --log-dir {logs}", (), {STDOUT: "apple out\n", STDERR: "err\n"}),
        (
            "-t 3 --local-ranks-filter 0 --duplicate-stdout-filters pear,apple --duplicate-stderr-filters pear",
            ("[default0]:apple out", "[default0]:err"),
            {"attempt_0/filtered_stdout.log": "[default0]:apple out\n", "attempt_0/filtered_stderr.log": ""},
        ),
    ],
)
def test_output_goes_where_torchrun_puts_it(
    options: str, console: tuple[str, ...], files: dict[str, str], tmp_path: Path
) -> None:
    """On the console with or without a prefix, into the files of torchrun's layout, or into both."""
    ended = run(tmp_path, *options.format(logs=tmp_path / "logs").split())
    assert ended.code == 1, ended.console
    shown = [line for line in ended.console.splitlines() if "apple" in line or line.endswith(("err", ":err"))]
    assert sorted(shown) == sorted(console)
    assert ended.files == ended.files | files
    error_file = ended.task["environ"]["TORCHELASTIC_ERROR_FILE"]
    assert error_file.endswith("attempt_0/0/error.json") if files or "-r " in options else error_file == ""


def test_the_task_has_torchruns_environment_and_each_attempt_has_a_folder(tmp_path: Path) -> None:
    """Its role, restarts, and a prefix of one's own; the words of its command line have the local rank."""
    options = ["-t", "1", "--role", "r", "--max-restarts", "1", "--log-dir", str(tmp_path / "logs")]
    script = (str(tmp_path / "task.py"), str(tmp_path / "told"), "rank ${local_rank}", "--role", "x\udcff")
    prefix = "<${role_name} ${local_rank} ${rank}>"
    ended = run(tmp_path, *options, script=script, environ={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": prefix})
    assert ended.code == 1
    assert ended.console.count("<r 0 -1>apple out") == 2
    assert set(ended.files) == {f"attempt_{number}/0/{name}" for number in (0, 1) for name in ("stdout.log",)}
    assert [path.name[:5] for path in (tmp_path / "logs").glob("*_*")] == ["job7_"]
    assert ended.task["argv"][2:] == ["rank 0", "--role", "x\udcff"]
    told = {
        **{"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "ROLE_NAME": "r", "TORCHELASTIC_RUN_ID": "job7"},
        **{"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "1", "CHICLE_MAX_NODES": "8"},
    }
    assert ended.task["environ"] == ended.task["environ"] | told


@pytest.mark.parametrize(
    ("options", "script"),
    [
        ("--no-python", ("{python}", "{folder}/task.py", "{told}")),
        ("-m", ("task", "{told}")),
        ("--run-path --start-method fork", ("{folder}/task.py", "{told}")),
        # Accepted, and nothing to do: the agent sees the end of its task at once, and its rendezvous is its own.
        (
            "--monitor-interval 5 --event-log-handler null --node-rank 1 --master-addr a --master-port 1 "
            "--rdzv-conf join_timeout=5 --signals-to-handle SIGTERM --shutdown-timeout 3 --virtual-local-rank "
            "--start-method forkserver --rdzv-backend chicle",
            ("{folder}/task.py", "{told}"),
        ),
    ],
)
def test_the_task_runs_as_torchrun_would_run_it(options: str, script: tuple[str, ...], tmp_path: Path) -> None:
    """A program, a module, or a script by runpy."""
    places = {"folder": tmp_path, "told": tmp_path / "told", "python": sys.executable}
    ended = run(tmp_path, *options.split(), script=tuple(word.format(**places) for word in script))
    assert ended.code == 1, ended.console
    assert (ended.task["name"], ended.task["argv"][1:]) == ("__main__", [str(tmp_path / "told")])
    assert "exit code 3" in ended.console or "exitcode  : 3" in ended.console


@pytest.mark.parametrize("is_by_path", [False, True])
def test_the_error_of_a_task_is_in_its_error_file_and_on_the_console(is_by_path: bool, tmp_path: Path) -> None:
    """torch's `record` writes it."""
    (tmp_path / "recorded.py").write_text(RECORDED.format('raise ValueError("boom")'))
    by_path = ("--run-path", str(tmp_path / "task.py"), str(tmp_path / "told"), "raise")
    script = by_path if is_by_path else (str(tmp_path / "recorded.py"),)
    ended = run(tmp_path, "-r", "3", "--log-dir", str(tmp_path / "logs"), script=script)
    assert ended.code == 1
    assert "ValueError: boom" in ended.files["attempt_0/0/error.json"]
    assert "ValueError: boom" in ended.console
    assert "error.json" in ended.console


def test_a_plug_in_may_say_where_output_goes(tmp_path: Path) -> None:
    """An installed class of torch's kind, by its name; another name is refused."""
    (tmp_path / "specs.py").write_text(PLUGIN)
    (tmp_path / "specs-1.dist-info").mkdir()
    (tmp_path / "specs-1.dist-info/METADATA").write_text("Name: specs\nVersion: 1\n")
    (tmp_path / "specs-1.dist-info/entry_points.txt").write_text("[torchrun.logs_specs]\nmine = specs:Specs\n")
    options = ["-t", "1", "--log-dir", str(tmp_path / "logs"), "--logs-specs"]
    before = partial(add_to_path, str(tmp_path))
    ended = run(tmp_path, *options, "mine", before=before)
    assert (ended.code, ended.files) == (1, {STDOUT: "apple out\n"})
    assert "[default0]:apple out" in ended.console
    assert ended.task["environ"]["TOLD_BY_PLUGIN"] == "yes"
    assert ended.task["environ"]["TORCHELASTIC_ERROR_FILE"].endswith("attempt_0/0/error.json")
    assert run(tmp_path, *options, "other", before=before).code != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_an_interrupt_ends_agent_and_task(number: signal.Signals, tmp_path: Path) -> None:
    """With the exit code of the signal, and all that the task has printed."""
    (tmp_path / "task.py").write_text(TASK)
    told = tmp_path / "told"
    with LocalAgents(tmp_path, script=(str(tmp_path / "task.py"), str(told), "wait"), has_log_dir=False) as cluster:
        agent = cluster.start("n0", options=("-t", "3"))
        assert comes(told.exists)
        agent.signal(number)
        assert agent.wait_for_end() == 128 + number
    assert not is_alive(json.loads(told.read_text())["pid"])
    assert "[default0]:apple out" in agent.output()
