"""How reasons and log lines speak of sizes, numbers and policies that failed."""

import re
import traceback
from collections.abc import Mapping
from pathlib import PurePath

from chicle_elastic.ids import NodeId
from chicle_elastic.values import Proposal


def bytes_text(size: int) -> str:
    """A size for people: "9.2 MiB"."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def count_text(count: int, thing: str) -> str:
    """A number of things: "1 chunk", "3 chunks"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


MOST_TALLIED = 16  # nodes that a line names; of more it names the number


def tally_text(counts: Mapping[NodeId, int]) -> str:
    """How many each node has or gets: "n1 (4), n2 (3)", or "40 nodes (2 to 3 each)"."""
    if len(counts) <= MOST_TALLIED:
        return ", ".join(f"{node} ({count})" for node, count in sorted(counts.items()))
    least, most = min(counts.values()), max(counts.values())
    return f"{len(counts)} nodes ({least if least == most else f'{least} to {most}'} each)"


def fault_text(error: Exception) -> str:
    """What a policy did that raised, as the end of a sentence: "raised KeyError: 7 (mine.py, line 9)"."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({PurePath(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {error}{place}"


def disabled_text(policy: str, why: str) -> str:
    """The line about a policy that is not asked again; `why` is the end of a sentence."""
    return f"policy {policy} is disabled: it {why}"


def is_disabled_text(line: str) -> bool:
    """Whether a line is one of `disabled_text`, of any policy: a user has to be told of that."""
    return re.match(r"policy .* is disabled: it ", line, re.DOTALL) is not None


def replaced_text(policy: str, count: int) -> str:
    """The line about decisions for which a newer one of the same policy stands."""
    return f"policy {policy} has replaced {count_text(count, 'decision')} by a newer one"


def refused_texts(proposal: Proposal, flaw: str) -> list[str]:
    """The lines about a decision that is not carried out, and about those that it stands for."""
    seen = "" if proposal.iteration is None else f" after iteration {proposal.iteration}"
    replaced = [replaced_text(proposal.policy, proposal.replaced)] if proposal.replaced else []
    return [*replaced, f"decision of policy {proposal.policy}{seen} is refused: {flaw}"]


def boundary_text(iteration: int, round: int, *, total_ms: float, round_ms: float) -> str:
    """The line about what a boundary cost."""
    return (
        f"boundary before iteration {iteration} took {total_ms:.1f} ms, {round_ms:.1f} ms of it to form round {round}"
    )


def is_boundary_text(line: str) -> bool:
    """Whether a line is one of `boundary_text`: a measurement, which says nothing of what happened."""
    return line.startswith("boundary before iteration ")


def boundary_ms_of(line: str) -> float | None:
    """The duration in a line of `boundary_text`; None for any other line."""
    match = re.match(r"boundary before iteration \d+ took ([\d.]+) ms", line)
    return float(match[1]) if match else None


def no_manager_text(total: int) -> str:
    """What a runtime says that cannot start nodes by itself when a policy asks for some."""
    return (
        f"{count_text(total, 'node')} wanted by a policy, and no resource manager is here to ask: start or stop nodes "
        "yourself"
    )
