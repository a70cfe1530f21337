"""Everything that a scheduler knows, as JSON, and a scheduler that goes on from there.

    restore(snapshot(scheduler), policies)      orders what `scheduler` would, whatever comes

So a node that joins a job late need not fold it from its first event. A snapshot is an object:

    {"format": "chicle scheduler", "version": 11, "settings": {...}, "policies": ["Rebalance"], "enabled": [0],
     "parts": {"ledger": {"merged": 7, ...}, ...}}

`enabled` are the policies, by their place, that were not disabled; they have no state, because `decide` is pure.
`parts` are the parts of the machine with the variables in `STATE`, as `codec` writes them. A new variable of
one of these classes is added to the table as well, and `VERSION` raised; a test compares the two. A snapshot is read by
the release that wrote it, and refused by others: the agents of a job have the same one.
"""

import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import codec
from chicle_elastic.scheduling.leases import Lease
from chicle_elastic.scheduling.ledger import ChunkEntry
from chicle_elastic.scheduling.loads import Failures
from chicle_elastic.scheduling.members import PresentNode
from chicle_elastic.scheduling.node_chunks import NodeChunks
from chicle_elastic.scheduling.pending_policies import DecidingPolicy, Owner
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings, State
from chicle_elastic.values import (
    AddressedMessage,
    Happening,
    Proposal,
    ResourceOffer,
    StateVersion,
    TaskReport,
    TrainingState,
)

FORMAT = "chicle scheduler"
VERSION = 11

STATE: Mapping[str, Mapping[str, Any]] = {
    "": {
        "state": State,
        "_has_begun": bool,
        "_started": tuple[int, int],
        "_happened": list[Happening],
        "_carried": tuple[Happening, ...],
        "_ordered_s": dict[tuple[ChunkId, NodeId], float],
        "_pause_reason": str | None,
        "_stop_reason": str | None,
        "_now": float,
        "_boundary_since": float,
        "_round_since": float,
        "_round_ms": float,
    },
    "ledger": {
        "node_chunks": dict[NodeId, NodeChunks],
        "merged": int,
        "began": int,
        "must_rebuild": bool,
        "freeing": dict[tuple[NodeId, ChunkId], int],
        "merged_round": int,
        "_entries": Annotated[dict[ChunkId, ChunkEntry], codec.COMPACT],
        "_missing": dict[ChunkId, None],
        "_lost_in_flight": dict[ChunkId, NodeId],
    },
    "_members": {
        "present": dict[NodeId, PresentNode],
        "round": int,
        "asked": tuple[NodeId, ...],
        "_formed": frozenset[NodeId] | None,
    },
    "_leases": {
        "in_flight": dict[ChunkId, Lease],
        "stuck": dict[ChunkId, str],
        "_answered": dict[ChunkId, None],
    },
    "_loads": {
        "in_flight": dict[ChunkId, NodeId],
        "stuck": dict[ChunkId, str],
        "_arrived": dict[ChunkId, NodeId],
        "_rounds": dict[NodeId, dict[ChunkId, int]],
        "_unwanted": dict[tuple[NodeId, ChunkId], None],
        "_failures": dict[ChunkId, Failures],
    },
    "_precopies": {
        "in_flight": dict[int, tuple[ChunkId, NodeId]],
        "held": dict[tuple[NodeId, ChunkId], None],
        "_num_ordered": int,
    },
    "_pending_transitions": {"migrations": dict[ChunkId, tuple[NodeId, NodeId]]},
    "_inventory": {"_strays": dict[ChunkId, dict[NodeId, StateVersion]]},
    "_pending_policies": {
        "proposals": list[Proposal],
        "disabled": dict[str, None],
        "parameters": dict[str, float],
        "owners": dict[str, Owner],
        "messages": list[AddressedMessage],
        "memories": dict[str, Any],
        "fresh": dict[str, None],
        "has_said": bool,
        "wanted": int,
        "num_requests": int,
        "offer": ResourceOffer,
        "offer_number": int,
        "lost": dict[tuple[str, str], None],
    },
    "_pending_policies.recent": {
        "reports": dict[NodeId, list[TaskReport]],
        "training": list[TrainingState],
        "happened": tuple[Happening, ...],
    },
    "_boundary": {
        "_is_starved": bool,
        "_is_turn_of_policies": bool,
        "_num_ordered": int,
        "_moved_after": dict[str, int],
        "_redrawn_after": dict[str, int],
        "_remembered_after": dict[str, int],
    },
}
"""Variables of each part of a scheduler, with their types; "" is the scheduler itself."""


LARGE = ("node_chunks", "_entries")
"""Variables with an entry per chunk. They may be JSON text within the JSON (`to_text`): a reader then makes their
classes from the text at once, and not first lists, which was three fifths of the work."""


def snapshot(
    scheduler: Scheduler, *, write: Callable[..., Any] = codec.to_values, write_large: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """Everything that a scheduler knows between two events, as JSON values; it shares nothing with the scheduler.

    Args:
        write: `codec.to_raw` for a snapshot that is only to be encoded: a third of the work.
        write_large: The same for the variables of `LARGE`; `to_text` for a snapshot that is sent to a node.
    """
    enabled = [id(policy) for policy in scheduler._pending_policies._policies]
    return {
        "format": FORMAT,
        "version": VERSION,
        "settings": codec.to_values(scheduler.settings),
        "policies": [policy.name for policy in scheduler.policies],
        "enabled": [number for number, policy in enumerate(scheduler.policies) if id(policy) in enabled],
        "parts": {
            name: {
                variable: (write_large if variable in LARGE and write_large is not None else write)(
                    getattr(_part(scheduler, name), variable), kind
                )
                for variable, kind in variables.items()
            }
            for name, variables in STATE.items()
        },
    }


def restore(data: Any, policies: Sequence[DecidingPolicy] = ()) -> Scheduler:
    """A scheduler that goes on from a snapshot. Raises ProtocolError when it is no snapshot, one of another version, or
    one of a job with other policies."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ProtocolError(f"{str(data)[:60]!r} is no snapshot of a scheduler")
    if data.get("version") != VERSION:
        raise ProtocolError(
            f"the snapshot has version {data.get('version')!r} and this release reads version {VERSION}; all nodes of "
            "a job need the same release of chicle-elastic"
        )
    names = [policy.name for policy in policies]
    if data.get("policies") != names:
        raise ProtocolError(f"the snapshot is of a job with the policies {data.get('policies')}, and not {names}")
    scheduler = Scheduler(_read(data.get("settings"), SchedulerSettings, "settings"), policies)
    enabled: list[int] = _read(data.get("enabled"), list[int], "enabled")
    parts = data.get("parts")
    if not isinstance(parts, dict) or parts.keys() != STATE.keys() or not set(enabled) <= set(range(len(names))):
        raise ProtocolError(f"a snapshot has the policies that are enabled, and the parts {', '.join(STATE)}")
    scheduler._pending_policies._policies = [scheduler.policies[number] for number in enabled]
    for name, variables in STATE.items():
        part = _part(scheduler, name)
        if not isinstance(parts[name], dict) or parts[name].keys() != variables.keys():
            raise ProtocolError(f"the part {name!r} of a snapshot has {', '.join(variables)}")
        for variable, kind in variables.items():
            where = f"parts.{name or 'scheduler'}.{variable}"
            setattr(part, variable, _read(parts[name][variable], kind, where))
    length = scheduler.settings.history_length
    recent = scheduler._pending_policies.recent
    recent.reports = {node: deque(reports, maxlen=length) for node, reports in recent.reports.items()}
    recent.training = deque(recent.training, maxlen=length)
    return scheduler


def _part(scheduler: Scheduler, name: str) -> Any:
    return operator.attrgetter(name)(scheduler) if name else scheduler


def to_text(value: Any, kind: Any) -> str:
    """Return a value as JSON text that is a string of another one."""
    return codec.encode(value, kind).decode()


def _read(data: Any, kind: Any, where: str) -> Any:
    try:
        is_text = isinstance(data, str) and where.rpartition(".")[2] in LARGE
        return codec.decode(data, kind) if is_text else codec.from_values(data, kind)
    except ProtocolError as error:
        raise ProtocolError(f"a snapshot of a scheduler has something else for {where}: {error}") from None
