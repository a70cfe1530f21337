"""What can be wrong with a node or a cluster: a clear error in the right process; the others go on, or wait."""

import re
import resource
import signal
from pathlib import Path

import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.agent import components
from chicle_elastic.cluster.agent.quorum_timeout import QuorumTimeout
from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.testing.virtual_clock import VirtualClock
from chicle_elastic.transports import wire
from tests.cluster.cluster_harness import AgentProcess, LocalAgents, end_all, svm_script
from tests.cluster.train_svm import breast_cancer

pytestmark = pytest.mark.chaos  # too long for `make test`

MAX_NODES = 4
FILE_BYTES = 1 << 16
"""Largest file that a node without memory may write; its chunks need more."""


def make_cluster(folder: Path, *options: str, min_nodes: int = 1) -> LocalAgents:
    """Agents whose job goes on until `end()`."""
    nodes = f"{min_nodes}:{MAX_NODES}"
    return LocalAgents(folder, nodes=nodes, script=svm_script(folder, "--tol", "0"), options=options)


def end_with_all_chunks(cluster: LocalAgents, agents: list[AgentProcess]) -> None:
    """End the job: these nodes have all chunks between them, and certify the same model."""
    num_chunks, _ = data_set()
    assert sum(agents[0].wait_for_members(len(agents))["chunks"].values()) == num_chunks
    end_all(cluster, agents)


def data_set() -> tuple[int, int]:
    """Number of chunks of the job, and the bytes of the slot of one."""
    X, y = breast_cancer()
    source = ArraySource(X, y.astype(int), max_tasks=MAX_NODES)
    infos = source.infos(Job(trainer=LinearTrainer(), source=source, max_iterations=1).trainer.state(source.schema))
    largest = max(info.size_bytes for info in infos)
    return len(infos), -(-largest // 64) * 64


def take_away_memory() -> None:
    """The kernel refuses larger files from now on, those of anonymous memory among them."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))


def speak_other_version() -> None:
    """A release of some other day."""
    wire.VERSION += 1


def be_next_patch_release() -> None:
    """It speaks the same protocol, and its scheduler may come to other effects."""
    components.__version__ = "0.1.99"


def test_nodes_that_cannot_take_part_end_and_the_others_go_on(tmp_path: Path) -> None:
    """Each says why, with exit code 1, and was never a member; nobody lost an iteration to it."""
    with make_cluster(tmp_path) as cluster:
        first, second = cluster.start("n0"), cluster.start("n1")
        first.wait_for_members(2)
        strangers = {
            "--memory leaves 64 bytes for chunks, and one chunk needs": cluster.start("x1", options=("--memory", "64")),
            "the system refused it (File too large)": cluster.start("x2", before=take_away_memory),
            f"speaks version {wire.VERSION} of the wire protocol and this process version {wire.VERSION + 1}; install "
            "the same version of chicle-elastic on every node": cluster.start("x3", before=speak_other_version),
            "version is 0.1.99 at x4 and": cluster.start("x4", before=be_next_patch_release),
        }
        for complaint, stranger in strangers.items():
            assert stranger.wait_for_end() == 1, complaint
            assert complaint in stranger.output()
            # The store refuses another version of the protocol before the agent has an event file.
            assert stranger.events("error") or "wire protocol" in complaint
        assert {node for event in first.events("iteration") for node in event["seconds"]} == {"n0", "n1"}
        first.assert_none("aborted")
        end_with_all_chunks(cluster, [first, second])


def test_a_leaver_whose_chunks_fit_nowhere_stays_until_somebody_has_room(tmp_path: Path) -> None:
    """The job pauses with the figures; a newcomer takes the chunks, the leaver goes, and nothing was lost."""
    num_chunks, slot_bytes = data_set()
    room = str(2 * num_chunks // 3 * slot_bytes)
    with make_cluster(tmp_path, "--memory", room, "--grace", "60") as cluster:
        first, leaver = cluster.start("n0"), cluster.start("n1")
        first.wait_for_members(2)
        leaver.signal(signal.SIGTERM)
        # The first node may have paused before, until the second one had room for the rest.
        pause = first.wait_for("paused", lambda event: "which has to leave" in event["reason"])
        assert re.search(r"chunks of n1, which has to leave: .* KiB needed, .* free", pause["reason"]), pause["reason"]
        newcomer = cluster.start("n2")
        first.wait_for("iteration", lambda event: "n2" in event["seconds"] and "n1" not in event["seconds"])
        assert leaver.wait_for_end() == 0
        assert leaver.events("leaving")[0]["reason"] == "its chunks are handed over"
        first.assert_none("lost")
        end_with_all_chunks(cluster, [first, newcomer])


def test_a_job_that_never_has_enough_nodes_ends(tmp_path: Path) -> None:
    """Who waits says for how many, and for how long it has."""
    with make_cluster(tmp_path, "--patience", "0.5", min_nodes=2) as cluster:
        alone = cluster.start("n0")
        assert alone.wait_for_end() == 1
        assert "fewer nodes than the 2 that it needs for 0.5 s (here: n0); start more nodes" in alone.output()
        assert not alone.events("group")


def test_a_job_that_has_too_few_nodes_for_too_long_ends(tmp_path: Path) -> None:
    """It pauses first, and says for what."""
    with make_cluster(tmp_path, "--patience", "1", min_nodes=2) as cluster:
        first, second = cluster.start("n0"), cluster.start("n1")
        first.wait_for_members(2)
        second.kill_all()
        assert "1 node here to stay, 2 needed" in first.wait_for("paused")["reason"]
        assert first.wait_for_end() == 1
        [error] = first.events("error")
        assert error["error"] == "TooFewNodesError"
        assert error["time"] - first.events("paused")[0]["time"] > 0.9


def test_enough_nodes_in_time_end_the_wait() -> None:
    """The next shortage is waited out from its own beginning."""
    clock, given_up = VirtualClock(), []
    with EventLoop(clock=clock) as loop:
        patience = QuorumTimeout(loop, 10.0, lambda: given_up.append(clock.now()))
        for is_short in (True, True, False, True, True, True):
            patience.look(is_short=is_short)
            clock.advance(4.0)
            loop.turn(0.0)
    assert given_up == [24.0]
