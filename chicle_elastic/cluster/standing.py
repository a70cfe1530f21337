"""Where an agent stands, for whoever looks for the reason why nothing goes on (SIGUSR2; see `agent`)."""

from collections import Counter
from typing import Any

from chicle_elastic.cluster.node_parts import Parts


def describe(parts: Parts) -> dict[str, Any]:
    """What the agent knows, as JSON values: its place in the job, and what it waits for."""
    membership, memory = parts.membership, parts.memory
    replica = membership.replica
    log, scheduler = replica.log, replica.log.scheduler
    return {
        "life": replica.life,
        "role": replica.role.value,
        "lead": replica.lead,
        "term": replica.term,
        "is_live": replica.own.is_live,
        "is_awaiting": replica.own.is_awaiting,
        "is_breaking": replica.own.is_breaking,
        "unseen": [type(proposal.event).__name__ for proposal in replica.own.outbox],
        "peers": dict(replica.peers),
        "length": len(log),
        "present": log.present,
        "members": log.members,
        "in_flight": log.in_flight,
        "state": scheduler.state.value,
        "round": scheduler.round,
        "copies": Counter(f"{lease.source} to {lease.target} {lease.state.value}" for lease in scheduler.leases),
        "frees": Counter(node for node, _ in scheduler.ledger.freeing),
        "missing": scheduler.ledger.num_missing,
        "under_way": memory.under_way,
    }
