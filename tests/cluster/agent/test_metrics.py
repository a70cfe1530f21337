"""Real agents with `--metrics`: a scraper, and `chicle status`, see a job whose second node joins and is killed."""

import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster_harness import ROOT, AgentProcess, Event, LocalAgents, paced_script
from tests.programs import run_python
from tests.timeouts import timeout_s

parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="needs prometheus-client")
MAIN = "from chicle_elastic.cli.main import main; raise SystemExit(main())"


def scrape(agent: AgentProcess) -> dict[str, float]:
    """Samples by name; of a family with labels, by the values of these."""
    url = agent.wait_for("metrics")["url"]
    with urllib.request.urlopen(url, timeout=timeout_s(30)) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        text = answer.read().decode()
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape_until(agent: AgentProcess, is_it: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """What a scraper finds after the first iteration from now on of which that is true."""
    found: dict[str, float] = {}

    def is_there(_: Event) -> bool:
        found.update(scrape(agent))
        return is_it(found)

    agent.wait_for("iteration", is_there, after=len(agent.events()))
    return found


def status(cluster: LocalAgents, secret: Path) -> list[str]:
    """What `chicle status --peer` prints, in a process of its own."""
    command = ["-c", MAIN, "status", "--peer", cluster.endpoint, "--secret-file", str(secret)]
    run = run_python(*command, cwd=ROOT)
    return run.stdout.splitlines()


def test_an_operator_sees_members_bytes_losses_and_replays(tmp_path: Path) -> None:
    """From the agent that stays; the other one answers for the same job."""
    with LocalAgents(tmp_path, nodes="1:4", script=paced_script(tmp_path), options=("--metrics", "0")) as cluster:
        first = cluster.start("n0")
        first.wait_for("iteration")
        second = cluster.start("n1")
        second.wait_for_members(2)
        grown = scrape_until(first, lambda found: found["chicle_tasks"] == 2)
        assert grown["chicle_first_member"] == 1
        assert grown["chicle_members"] == 2
        assert 0 < grown["chicle_hidden_bytes_total"] < grown["chicle_moved_bytes_total"]
        assert grown["chicle_node_chunks n1"] > 0
        assert grown["chicle_iteration"] >= grown["chicle_iteration_seconds_count"] > 0
        assert grown["chicle_model objective"] > 0
        assert second.wait_for("transport")["reason"] == "shm: both agents are on one host"
        other = scrape(second)
        assert other["chicle_first_member"] == 0
        assert other["chicle_members"] == 2
        second.kill_all()
        shrunk = scrape_until(first, lambda found: found["chicle_replayed_chunks_total"] > 0)
        assert shrunk["chicle_membership_changes_total loss"] == 1
        assert shrunk["chicle_stalls_total"] >= 2
        assert shrunk["chicle_stall_seconds_total"] > 0
        assert shrunk["chicle_paused"] == 0
        told = status(cluster, tmp_path / "job.secret")
        assert told[0].endswith("by the agent of n0: trains")
        assert " ms each, objective " in told[1]
        assert told[2:4] == ["  1 member", f"    n0: {told[3].split()[1]} chunks, {told[3].split(', ')[1]}"]
        assert "2 joins, 1 loss; training waited" in told[4]
        assert "loaded again" in told[5]
        cluster.end()
        assert first.wait_for_end() == 0, first.output()
