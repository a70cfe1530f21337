"""`chicle doctor`: a line for everything that a node can do or not, with the reason."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic.cli.agent_lines import ADVICE
from chicle_elastic.cli.main import main
from tests.house.sources import ROOT

TOPICS = {
    "cores",
    "memory",
    "locked memory",
    "shm",
    "tcp",
    "torch",
    "isal",
    "torchx",
    "tensorboard",
    "slurm",
    "kubernetes",
}


def test_every_topic_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is missing is no fault of the node."""
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("chicle ")
    for topic in (*TOPICS, "rdma"):
        assert any(line.strip().startswith(topic) for line in lines), topic


def test_transports_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes are fetched by them; RDMA says why not, where it cannot."""
    assert main(["doctor", "--json"]) == 0
    findings = {finding["topic"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert set(findings) >= TOPICS
    for topic in ("shm", "tcp"):
        assert findings[topic]["verdict"] == "yes"
        assert "1.0 MiB were fetched" in findings[topic]["detail"]
    assert findings["rdma"]["detail"]


def test_a_host_that_is_not_this_one_cannot_be_listened_on(capsys: pytest.CaptureFixture[str]) -> None:
    """The line says so; the others are there all the same."""
    assert main(["doctor", "--json", "--host", "192.0.2.1"]) == 0
    findings = {finding["topic"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["tcp"]["verdict"] == "no"
    assert "cannot listen on tcp://192.0.2.1:0" in findings["tcp"]["detail"]
    assert findings["shm"]["verdict"] == "yes"


LOGGED = ("logger.warning", "logger.error", "logger.exception", "logger.log")
OF_AGENTS = ("cluster", "disk_watch.py", "monitoring", "runtime/collectives/socket_group.py", "transports")
MADE_ELSEWHERE = {"%s", "%s (%s)", "%s: %s"}  # formats without words of their own
MADE = (
    "the store at 127.0.0.1:29400 is unreachable since 13:02:07; training goes on; joins wait (no answer)",
    "1 node wanted by a policy, and no resource manager is here to ask: start or stop nodes yourself",
    "the tasks of 2 nodes could not connect 5 times in a row: n0 at 10.0.0.1, n1 at 10.0.0.2",
    "n0: the job is paused: 1 node here to stay, 2 needed",
    "chicle: 3 lines were dropped here: nobody read stderr",
)


def formats_of(path: Path) -> Iterator[str]:
    """What a file gives to `logger.warning`, `error`, `exception` and `log` as the words of a line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and (call := ast.unparse(node.func)) in LOGGED:
            yield ast.literal_eval(node.args[call == "logger.log"])


def test_every_warning_of_an_agent_is_known() -> None:
    """By words of its format, so by those of each line; and no advice is without a line."""
    places = [ROOT / "chicle_elastic" / name for name in OF_AGENTS]
    files = [path for place in places for path in (place.rglob("*.py") if place.is_dir() else (place,))]
    formats = {text for path in files for text in formats_of(path)} - MADE_ELSEWHERE
    assert len(formats) > 30
    assert not {text for text in (*formats, *MADE) if not any(words in text for words in ADVICE)}
    others = {"was cut: nothing was acknowledged"}  # the reason of a line of the event file
    assert not {words for words in ADVICE if not any(words in text for text in (*formats, *MADE))} - others


def test_lines_of_an_agent_are_explained_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each kind once, among whatever else a task prints."""
    log = tmp_path / "n0.out"
    log.write_bytes(b"epoch 1\n\xff\nthe task of n0 died: it ended\nepoch 2\nthe task of n0 died\n" + MADE[0].encode())
    assert main(["doctor", "--log", str(log)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the task of n0 died: it ended"
    assert lines[1].startswith("    -> look at what the task printed")
    assert [line for line in lines if not line.startswith("    -> ")] == [lines[0], MADE[0]]
