"""Everything that a scheduler knows, as JSON, and a scheduler that goes on from there.

    restore(snapshot(scheduler), policies)      orders what `scheduler` would, whatever comes

So a node that joins a job late need not fold it from its first event. A snapshot is an object:

    {"format": "chicle scheduler", "version": 13, "settings": {...}, "policies": ["Rebalance"], "enabled": [0],
     "parts": {"ledger": {"merged": 7, ...}, ...}}

`enabled` are the policies, by their place, that were not disabled; they have no state, because `decide` is pure.
`parts` are the parts of the machine with their variables (`STATE`), as `codec` writes them. A new field with a default
of one of these classes is in it; `VERSION` is raised then. A snapshot is read by the release that wrote it, and refused
by others: the agents of a job have the same one.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from chicle_elastic.errors import ProtocolError
from chicle_elastic.scheduling import codec
from chicle_elastic.scheduling.boundary import Boundary
from chicle_elastic.scheduling.inventory import Inventory
from chicle_elastic.scheduling.leases import Leases
from chicle_elastic.scheduling.ledger import Ledger
from chicle_elastic.scheduling.loads import Loads
from chicle_elastic.scheduling.members import Members
from chicle_elastic.scheduling.pending_policies import DecidingPolicy, PendingPolicies, RecentIterations
from chicle_elastic.scheduling.precopies import Precopies
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.scheduling.transitions import PendingTransitions

FORMAT = "chicle scheduler"
VERSION = 13

PARTS: Mapping[str, type[Any]] = {
    "": Scheduler,
    "ledger": Ledger,
    "_members": Members,
    "_leases": Leases,
    "_loads": Loads,
    "_precopies": Precopies,
    "_pending_transitions": PendingTransitions,
    "_inventory": Inventory,
    "_pending_policies": PendingPolicies,
    "_pending_policies.recent": RecentIterations,
    "_boundary": Boundary,
}
"""Where each part of a scheduler is; "" is the scheduler itself."""


def _variables(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    known = (each.name for each in fields(kind) if (each.default, each.default_factory) != (MISSING, MISSING))
    return {name: hints[name] for name in known if name != "policies"}


STATE = {name: _variables(kind) for name, kind in PARTS.items()}
"""Variables of each part, with their types: its fields with a default."""


LARGE = ("node_chunks", "_infos", "_entries")
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
