"""`chicle doctor`: a line for everything that a node can do or not, with the reason."""

import json

import pytest

from chicle_elastic.cli.main import main

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
