"""Jobs of real agents that count, and what every test of them does: start, wait, end and judge."""

from tests.harness.chaos_app import NUM_ROWS
from tests.harness.chaos_nodes import ChaosNode, ChaosNodes
from tests.harness.cluster_truth import Evidence, judge
from tests.timeouts import comes


def start(nodes: ChaosNodes, count: int) -> list[ChaosNode]:
    """Start nodes and wait until all of them iterate; the one that leads comes first."""
    members = [nodes.start() for _ in range(count)]
    wait_for_members(nodes, members)
    lead = nodes.lead()
    return sorted(members, key=lambda node: node is not lead)


def wait_for_members(nodes: ChaosNodes, members: list[ChaosNode]) -> None:
    """Wait until exactly these take part, and no sample is missing."""
    names = {node.name for node in members}
    before = nodes.iteration()

    def are_there() -> bool:
        lasts = [node.last("iteration") for node in members]
        return all(
            last is not None
            and last["iteration"] > before
            and last["samples"].keys() == names
            and sum(last["samples"].values()) == NUM_ROWS
            for last in lasts
        )

    assert comes(are_there, 40), "\n".join(
        f"{node.name}: {node.last('iteration')}\n{node.output()}" for node in nodes.nodes
    )


def end(nodes: ChaosNodes, survivors: list[ChaosNode]) -> Evidence:
    """End the job; everything that was written down has to fit."""
    wait_for_members(nodes, survivors)
    nodes.end_job()
    assert comes(lambda: not nodes.running(), 40)
    assert [node.exit_code for node in survivors] == [0] * len(survivors), survivors[0].output()
    evidence = Evidence.read(nodes.log)
    findings = judge(evidence, "count")
    assert findings == [], "\n".join(str(finding) for finding in findings)
    assert len(evidence.outcomes) == len(survivors)
    return evidence
