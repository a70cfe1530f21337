"""`chicle status --peer HOST[:PORT]`: how the jobs of a rendezvous store stand, by what their agents say.

For a job that has no folder on this host. An agent answers a process that has proven the secret, and takes no notice of
it otherwise. All agents of a job see the same, so the first one that answers speaks for it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chicle_elastic.cli.job_agents import connect, find_secret, greet, nodes_by_job
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import ChicleError, DataError, PeerLostError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.monitoring.job_metrics import Metrics, metrics_of
from chicle_elastic.scheduling.text import bytes_text, count_text
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tls import TlsIdentity

MOST_NODES = 16  # of which a line is printed
QUIET_S = 10.0
PLURALS = {"join": "joins", "notice": "notices", "loss": "losses"}


def job_lines(endpoint: str, *, secret_file: Path | None, tls: Path | None = None) -> Iterator[str]:
    """How each job of the store stands, in words. Raises UsageError when there is no secret, or it or the endpoint
    cannot be used, DataError when the store serves no job, PeerLostError when the store does not answer, or no agent of
    a job does, ForgedStateError when an address in the store is not signed with this secret.

    Args:
        endpoint: Of the rendezvous store, "host:port" or "host".
        tls: Folder of certificate, key and CA; None for links without TLS.
    """
    secret = find_secret(secret_file)
    if secret is None:
        raise UsageError(
            "agents answer to who has the secret of the job: give --secret-file, or set CHICLE_SECRET_FILE"
        )
    identity = None if tls is None else TlsIdentity(tls)
    store = connect(endpoint)
    jobs = nodes_by_job(store)
    if not jobs:
        raise DataError(f"no agent has come to the rendezvous store at {endpoint} yet: start a node, then try again")
    for run_id, nodes in jobs.items():
        answer = _ask(store, run_id, nodes, secret, identity)
        yield from lines_of(run_id, str(answer.get("node")), metrics_of(answer), now_s=time.time())


def _ask(
    store: StoreConnection, run_id: str, nodes: Sequence[str], secret: JobSecret, tls: TlsIdentity | None
) -> Mapping[str, Any]:
    """The answer of the first agent that gives one: the leader's, if it lives."""
    from chicle_elastic.cluster.consensus.term_store import TermStore

    terms = TermStore(store, run_id=run_id, secret=secret)
    lead = terms.look().lead.partition("#")[0]
    silent = []
    for node in sorted(nodes, key=lambda node: node != lead):
        contact = terms.find(NodeId(node))
        if contact is None or contact.has_ended:
            continue
        try:
            return greet(contact.address, secret, command="status", tls=tls, ask="get_status")
        except ChicleError as error:
            silent.append(f"{node}: {error}")
    told = "; ".join(silent) or "all of them have ended"
    raise PeerLostError(
        f"no agent of the job {run_id!r} answers ({told}); chicle doctor --peer {store.endpoint} tries each step"
    )


def lines_of(run_id: str, node: str, now: Metrics, *, now_s: float) -> list[str]:
    """A job in words. `now_s`: seconds since 1970."""
    lines = [f"job {run_id!r}, by the agent of {node}: {_state(now, now_s)}"]
    if now.iterations:
        figures = "".join(f", {name} {value:.4g}" for name, value in now.figures.items())
        mean_ms = 1e3 * now.iterations_s / now.iterations
        lines.append(f"  iteration {now.iteration}, {now.epochs:.1f} epochs, {mean_ms:.1f} ms each{figures}")
    lines.append(f"  {count_text(len(now.members), 'member')}")
    for name in now.members[:MOST_NODES]:
        chunks, seconds = now.chunks.get(name), now.seconds.get(name)
        has = "" if chunks is None else f": {count_text(chunks, 'chunk')}"
        took = "" if seconds is None else f", {1e3 * seconds:.1f} ms in the last iteration"
        lines.append(f"    {name}{has}{took}")
    if len(now.members) > MOST_NODES:
        lines.append(f"    and {len(now.members) - MOST_NODES} more")
    changes = ", ".join(
        f"{count} {change if count == 1 else PLURALS.get(change, change)}"
        for change, count in now.changes.items()
        if count
    )
    if changes:
        last = "" if now.last_stall_s is None else f", {1e3 * now.last_stall_s:.0f} ms for the last change"
        lines.append(f"  since {node} joined: {changes}; training waited {now.stalls_s:.2f} s{last}")
    if now.moved_bytes or now.reloaded_chunks:
        hidden = f"{bytes_text(now.hidden_bytes)} of them behind iterations"
        again = f"; {count_text(now.reloaded_chunks, 'chunk')} loaded again" if now.reloaded_chunks else ""
        lines.append(f"  {bytes_text(now.moved_bytes)} of chunks have changed nodes, {hidden}{again}")
    if now.checkpoints:
        lines.append(f"  newest checkpoint: iteration {now.checkpoint_iteration}")
    return lines


def _state(now: Metrics, now_s: float) -> str:
    if now.end_reason:
        return f"over: {now.end_reason}"
    if now.pause_reason:
        return f"paused: {now.pause_reason}"
    if now.ended_unix_s is None:
        return "no iteration has ended yet"
    quiet_s = now_s - now.ended_unix_s
    return "trains" if quiet_s < QUIET_S else f"the last iteration ended {quiet_s:.0f} s ago"
