"""`chicle status --peer`: how a job stands, in words. tests/cluster/agent/test_metrics.py tries it on real agents."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chicle_elastic.cli.job_status import lines_of
from chicle_elastic.cli.main import main
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.job_metrics import JobMetrics, Metrics, metrics_of
from chicle_elastic.transports.secret import JobSecret


@pytest.fixture
def store() -> Iterator[StoreServer]:
    """Without a job."""
    with StoreServer() as server:
        yield server


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """The file of one."""
    JobSecret.load_or_create(tmp_path / "job.secret")
    return tmp_path / "job.secret"


def test_a_job_in_words() -> None:
    """Everything that there is to tell, and nothing that is not known."""
    now = Metrics(
        members=("a", "b"),
        iteration=7,
        iterations=5,
        iterations_s=0.5,
        last_iteration_s=0.1,
        ended_unix_s=100.0,
        epochs=7.0,
        figures={"duality_gap": 0.00125},
        chunks={"a": 1, "b": 3},
        seconds={"a": 0.05},
        changes={"join": 2, "notice": 0, "loss": 2},
        transitions=3,
        stalls_s=0.25,
        last_stall_s=0.05,
        moved_bytes=2 << 20,
        hidden_bytes=1 << 20,
        reloaded_chunks=1,
        checkpoints=2,
        checkpoint_iteration=6,
    )
    assert lines_of("job", "a", now, now_s=101.0) == [
        "job 'job', by the agent of a: trains",
        "  iteration 7, 7.0 epochs, 100.0 ms each, duality_gap 0.00125",
        "  2 members",
        "    a: 1 chunk, 50.0 ms in the last iteration",
        "    b: 3 chunks",
        "  since a joined: 2 joins, 2 losses; training waited 0.25 s, 50 ms for the last change",
        "  2.0 MiB of chunks have changed nodes, 1.0 MiB of them behind iterations; 1 chunk loaded again",
        "  newest checkpoint: iteration 6",
    ]


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (Metrics(), "no iteration has ended yet"),
        (Metrics(pause_reason="it waits for 1 more node"), "paused: it waits for 1 more node"),
        (Metrics(end_reason="converged"), "over: converged"),
        (Metrics(ended_unix_s=40.0), "the last iteration ended 60 s ago"),
    ],
)
def test_the_state_of_a_job(now: Metrics, state: str) -> None:
    """The first line has it."""
    assert lines_of("job", "a", now, now_s=100.0)[0] == f"job 'job', by the agent of a: {state}"


def test_of_many_nodes_sixteen_are_named() -> None:
    """The others are counted."""
    lines = lines_of("job", "n0", Metrics(members=tuple(f"n{k}" for k in range(20))), now_s=0.0)
    assert lines[1] == "  20 members"
    assert lines[-1] == "    and 4 more"
    assert len(lines) == 19


def test_an_answer_of_another_version_is_refused() -> None:
    """The error names the field."""
    answer = JobMetrics(NodeId("a"), "job").status()
    assert metrics_of(answer) == Metrics()
    del answer["metrics"]["members"]
    answer["metrics"]["iteration"] = "seven"
    with pytest.raises(ProtocolError, match="iteration"):
        metrics_of(answer)


def test_neither_folder_nor_store(capsys: pytest.CaptureFixture[str]) -> None:
    """Or both: usage."""
    for arguments in (["status"], ["status", "job", "--peer", "127.0.0.1"]):
        assert main(arguments) == 2
        assert "the folder of a job, or --peer" in capsys.readouterr().err


def test_a_store_without_a_job(store: StoreServer, secret: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and what to do."""
    assert main(["status", "--peer", store.endpoint, "--secret-file", str(secret)]) == 1
    assert "no agent has come to the rendezvous store" in capsys.readouterr().err


def test_no_secret(store: StoreServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents would not answer."""
    for name in ("CHICLE_SECRET", "CHICLE_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert main(["status", "--peer", store.endpoint]) == 2
    assert "give --secret-file" in capsys.readouterr().err


def test_no_store(secret: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 9 of this host takes no connection."""
    monkeypatch.setattr("chicle_elastic.cli.job_agents.CONNECT_S", 0.1)
    assert main(["status", "--peer", "127.0.0.1:9", "--secret-file", str(secret)]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err
