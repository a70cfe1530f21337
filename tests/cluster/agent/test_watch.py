"""Watching a cluster of real agents: its ledger is checked while it trains, and TensorBoard shows it to the end."""

import itertools
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chicle_elastic.monitoring.cluster_board import BOARD_FOLDER
from tests.cluster.cluster_harness import LocalAgents, paced_script


def test_a_solver_that_skips_a_chunk_ends_the_job_everywhere(tmp_path: Path) -> None:
    """It says that its budget was spent, which its task has to believe; its agent knows better."""
    with LocalAgents(tmp_path, nodes="2:2", script=paced_script(tmp_path, "--skip-from", "20")) as cluster:
        agents = [cluster.start("n0"), cluster.start("n1")]
        assert [agent.wait_for_end() for agent in agents] == [1, 1]
        for agent in agents:
            [error, *_] = agent.events("error")
            assert error["error"] == "ContractError"
            assert f"the task of {agent.name} skipped chunk " in error["reason"]
            assert " in iteration 20, but by the placement it owns it" in error["reason"]
            assert "skipped chunk" in agent.output()
            # Orders are under way meanwhile; a job that nobody ends has 100,000 iterations.
            assert max(event["iteration"] for event in agent.events("iteration")) < 1000


def test_tensorboard_shows_one_run_whoever_leads(tmp_path: Path) -> None:
    """The first member is killed: the next one goes on, and the curves of the dead one end at zero."""
    with LocalAgents(tmp_path, nodes="1:4", script=paced_script(tmp_path)) as cluster:
        lead = cluster.start("n0")
        lead.wait_for("iteration")
        second = cluster.start("n1")
        second.wait_for_members(2)
        moved = lead.wait_for("iteration", lambda event: event["moved_bytes"] > 0)
        assert 0 < moved["hidden_bytes"] < moved["moved_bytes"]  # rows were copied ahead, their states were not
        lead.kill_all()
        second.wait_for_members(1)
        cluster.end()
        assert second.wait_for_end() == 0, second.output()
    board = EventAccumulator(str(tmp_path / BOARD_FOLDER))
    board.Reload()
    last = second.events("iteration")[-1]
    steps = [event.step for event in board.Scalars("model/objective")]
    # What the dead lead had not written to disk yet is lost: two seconds at most.
    assert all(before < after for before, after in itertools.pairwise(steps))
    assert steps[-1] == last["iteration"]
    assert {"seconds/n1", "job/epochs", "transition/stall_ms", "transition/rendezvous_ms"} <= {*board.Tags()["scalars"]}
    assert board.Scalars("chunks/n0")[-1].value == 0
    assert board.Scalars("chunks/n1")[-1].value == last["chunks"]["n1"]
    assert board.Scalars("job/members")[-1].value == 1
    texts = [event.tensor_proto.string_val[0].decode() for event in board.Tensors("events")]
    assert any("n0 is lost" in text for text in texts)
