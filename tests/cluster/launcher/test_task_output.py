"""torchrun's options about the task, by real agents: what it runs, its environment, and where its output goes."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from chicle_elastic.cluster.agent.task_end import TaskEnd
from chicle_elastic.cluster.agent.task_output import MOST_BYTES, Destinations, TaskOutput, tell_lines
from chicle_elastic.cluster.task_options import TaskOptions
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
    """Hold what an agent and its task have left."""

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
        before = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
        agent = cluster.start("n0", options=("-t", "3"), before=before)
        assert comes(told.exists)
        agent.signal(number)
        assert agent.wait_for_end() == 128 + number
    assert not is_alive(json.loads(told.read_text())["pid"])
    assert "[default0]:apple out" in agent.output()


def test_a_command_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    """The hang-up is ignored, by the task as well; without nohup it is an interrupt."""
    (tmp_path / "task.py").write_text(TASK)
    told = tmp_path / "told"
    before = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    with LocalAgents(tmp_path, script=(str(tmp_path / "task.py"), str(told), "wait"), has_log_dir=False) as cluster:
        agent = cluster.start("n0", before=before)
        assert comes(told.exists)
        agent.signal(signal.SIGHUP)
        assert agent.process.wait(0.5) is None
        assert is_alive(json.loads(told.read_text())["pid"])
        agent.signal(signal.SIGINT)
        assert agent.wait_for_end() == 128 + signal.SIGINT


class Pieces(threading.Event):
    """Hold what a task writes, piece by piece: the next one while the agent waits before it looks again."""

    def __init__(self, file: Path, *pieces: bytes) -> None:
        super().__init__()
        self._file, self._pieces = file, list(pieces)
        file.write_bytes(self._pieces.pop(0))

    def wait(self, timeout: float | None = None) -> bool:
        """Write a piece; the task ends with the last one."""
        with self._file.open("ab") as file:
            file.write(self._pieces.pop(0))
        if not self._pieces:
            self.set()
        return True


MANY = b"x" * MOST_BYTES


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        ((b"app", b"le\npe", b"ar\n"), ["apple\n", "pear\n"]),
        ((b"\xc3", b"\xa4\n"), ["ä\n"]),
        ((b"10%\r20%", b"\r\nno end"), ["10%\n", "20%\n", "no end"]),  # a progress bar
        ((b"sure?", b"", b" yes\n"), ["sure?", " yes\n"]),  # a question to the user
        ((MANY + b"y\n", b"z\n"), [MANY.decode(), "y\n", "z\n"]),
    ],
)
def test_lines_of_tee_are_whole(pieces: tuple[bytes, ...], told: list[str], tmp_path: Path) -> None:
    """Also where the agent looks at the file while a line is written; it waits for the end of a line for one look."""
    found: list[str] = []
    tell_lines(str(tmp_path / "file"), found.append, Pieces(tmp_path / "file", *pieces))
    assert found == told


def test_a_full_disk_takes_lines_from_the_file_of_the_filters_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The console has them all, and the agent goes on."""
    output = TaskOutput(TaskOptions(command=(), title="", stdout_filters=("apple",), prefix=">"), "job")
    file = str(tmp_path / "file")
    to = Destinations(stdout=file, followed_stdout=file, filtered_stdout="/dev/full")
    with mock.patch.object(output, "_destinations", return_value=to), output.open({}) as (stdout, _):
        assert stdout is not None
        stdout.write("apple 1\napple 2\n")
    output.close()
    assert capfd.readouterr().out == ">apple 1\n>apple 2\n"
    assert caplog.messages == ["/dev/full gets no more lines: [Errno 28] No space left on device"]


def test_an_error_file_may_hold_anything(tmp_path: Path) -> None:
    """A task writes it, and the agent only reads a traceback there."""
    for text in ("", "[" * 200_000, "7", '{"message": {}}', '{"message": {"extraInfo": 7, "message": "boom"}}'):
        (tmp_path / "error.json").write_text(text)
        assert TaskEnd(3, error_file=str(tmp_path / "error.json")).error == ""


HANGS = """
import os, pathlib, sys, time
from chicle_elastic.runtime.control.channel import Channel
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
pathlib.Path(sys.argv[1] + attempt).write_text(str(os.getpid()))
if attempt == "1" and "fail" in sys.argv:
    sys.exit(3)
Channel.connect(os.environ["CHICLE_CONTROL"]).close()
time.sleep(600)
"""


def be_impatient() -> None:
    """Do not wait long for a task that does not end."""
    mock.patch("chicle_elastic.cluster.agent.node_agent.TASK_END_S", 0.2).start()


def test_a_task_that_has_lost_its_channel_ends_before_the_next_one_starts(tmp_path: Path) -> None:
    """It may hang in native code. It would compute beside its successor, and outlive its agent."""
    (tmp_path / "hangs.py").write_text(HANGS)
    script = (str(tmp_path / "hangs.py"), str(tmp_path / "pid"), "fail")
    ended = run(tmp_path, "--max-restarts", "1", script=script)
    assert (ended.code, "exit code 3" in ended.console) == (1, True), ended.console
    assert not is_alive(int((tmp_path / "pid0").read_text()))


def test_a_failed_task_that_does_not_end_is_a_failure(tmp_path: Path) -> None:
    """A thread of the user's may keep its process."""
    (tmp_path / "hangs.py").write_text(HANGS)
    ended = run(tmp_path, script=(str(tmp_path / "hangs.py"), str(tmp_path / "pid")), before=be_impatient)
    assert ended.code == 1, ended.console
    assert "the task has failed, and did not end within 0.2 s" in ended.console
    assert not is_alive(int((tmp_path / "pid0").read_text()))
