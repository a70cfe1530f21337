"""The debug state of an agent, to diagnose a job that makes no progress (SIGUSR2; see `agent`)."""

from collections import Counter
from typing import Any

from chicle_elastic.cluster.agent.components import Components


def describe_state(components: Components) -> dict[str, Any]:
    """The state of the agent as JSON values: its part in the log and the round, and what it waits for."""
    scheduler = components.membership.log.scheduler
    return {
        **components.membership.log.describe(),
        "state": scheduler.state.value,
        "round": scheduler.round,
        "copies": Counter(f"{lease.source} to {lease.target} {lease.state.value}" for lease in scheduler.leases),
        "frees": Counter(node for node, _ in scheduler.ledger.freeing),
        "missing": scheduler.ledger.num_missing,
        "under_way": components.memory.under_way,
    }
