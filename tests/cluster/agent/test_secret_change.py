"""The job secret is changed while the job runs, in files of its nodes that are not changed at the same moment."""

from pathlib import Path

import pytest

from chicle_elastic.cluster.consensus.term_store import TermStore
from chicle_elastic.cluster.options import DEFAULT_RUN_ID
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import SecretError
from chicle_elastic.ids import NodeId
from chicle_elastic.transports import links
from chicle_elastic.transports.secret import JobSecret
from tests.cluster.cluster_harness import AgentProcess, LocalAgents, paced_script
from tests.timeouts import comes

OLD, NEW = "ab" * 32, "cd" * 32


def secret_file(folder: Path, node: str, *keys: str) -> Path:
    """Write what a node knows of the secret, as an operator does."""
    path = folder / f"{node}.secret"
    path.touch(0o600)
    path.write_text("\n".join(keys) + "\n")
    return path


def takes(cluster: LocalAgents, agent: AgentProcess, key: str) -> bool:
    """Say whether the agent can be found and linked to with this key alone."""
    secret = JobSecret.from_text(key, where="a test")
    terms = TermStore(StoreConnection(cluster.endpoint).connect(), run_id=DEFAULT_RUN_ID, secret=secret)
    try:
        contact = terms.find(NodeId(agent.name))
        if contact is not None:
            links.connect(contact.address, secret, name="test#1").close()
    except SecretError:
        return False
    return contact is not None


@pytest.mark.chaos
def test_the_secret_changes_and_no_iteration_is_lost(tmp_path: Path) -> None:
    """At each step a node with the new file joins first and the others follow; at the end the old key keeps out."""
    with LocalAgents(tmp_path, script=paced_script(tmp_path)) as cluster:
        agents: list[AgentProcess] = []

        def start(*keys: str) -> None:
            name = f"n{len(agents)}"
            agents.append(cluster.start(name, secret_file=secret_file(tmp_path, name, *keys)))

        for _ in range(3):
            start(OLD)
        agents[0].wait_for_members(3)
        for keys in ((OLD, NEW), (NEW, OLD), (NEW,)):
            start(*keys)
            agents[0].wait_for_members(len(agents))
            for agent in agents:
                secret_file(tmp_path, agent.name, *keys)
            for agent in agents:
                assert comes(lambda agent=agent: takes(cluster, agent, NEW), 30)
                assert comes(lambda agent=agent, keys=keys: takes(cluster, agent, OLD) is (OLD in keys), 30)
        outsider = cluster.start("outsider", secret_file=secret_file(tmp_path, "outsider", OLD))
        start(NEW)
        assert outsider.wait_for_end() == 1
        agents[0].wait_for_members(len(agents))
        done = [event["iteration"] for event in agents[0].events("iteration")]
        assert done == list(range(done[0], done[0] + len(done)))
        agents[0].assert_none("lost", "aborted")
        cluster.end()
        assert [agent.wait_for_end() for agent in agents] == [0] * len(agents)
