"""Policies as text: "Rebalance+Shuffle:share=0.1,patience=0.2" is a set of two, "none" an empty one. One of your own
goes by its import path, "package.module:Relieve:ratio=2".
"""

import ast
import dataclasses
import sys
from typing import Any

from chicle_elastic.errors import UsageError
from chicle_elastic.policies.base import Policy
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.scale import Scale
from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.policies.straggler import Straggler
from chicle_elastic.policies.tune import Tune
from chicle_elastic.solvers.network import imported

POLICIES: dict[str, type[Policy]] = {kind.__name__: kind for kind in (Rebalance, Scale, Shuffle, Straggler, Tune)}
NONE = "none"


def policies_of(text: str) -> tuple[Policy, ...]:
    """The policies of a set. Raises UsageError when there is no such policy or field, or a policy refuses a value.

    >>> from chicle_elastic.runtime.simulate.policy_sets import policies_of
    >>> [policy.name for policy in policies_of("Rebalance+Shuffle:share=0.1")]
    ['Rebalance', 'Shuffle']
    """
    if text.strip() in ("", NONE):
        return ()
    policies = tuple(_policy(word.strip()) for word in text.split("+"))
    names = [policy.name for policy in policies]
    if len(set(names)) < len(names):
        raise UsageError(f"policies {text!r}: a policy is there twice")
    return policies


def own_class(name: str, words: str) -> Any:
    """Return the class of a user that "package.module:Class" names, also where the module lies in the present folder.
    Raises UsageError when there is none; the message begins with `words`."""
    if "" not in sys.path:
        sys.path.append("")
    return imported(name, words)


def _policy(text: str) -> Policy:
    name, _, given = text.partition(":")
    kind = POLICIES.get(name)
    if kind is None:
        path, _, given = given.partition(":")
        if not path or "=" in path:
            raise UsageError(
                f"there is no policy {name!r}; there are {', '.join(POLICIES)}, {NONE} for none of them, and your own "
                "as package.module:Class"
            )
        name = f"{name}:{path}"
        kind = own_class(name, f"policy {name}")
        is_policy = callable(getattr(kind, "decide", None)) and hasattr(kind, "name")
        if not isinstance(kind, type) or not dataclasses.is_dataclass(kind) or not is_policy:
            raise UsageError(
                f"policy {name}: it is no policy, which is a dataclass with decide(observations) and a name; derive it "
                "from chicle_elastic.Policy"
            )
    values = {}
    for item in given.split(",") if given else ():
        field, equals, value = item.partition("=")
        known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        if not equals or field.strip() not in known:
            raise UsageError(f"policy {name}: {item!r} is not FIELD=VALUE; its fields are {', '.join(known)}")
        try:
            values[field.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            values[field.strip()] = value.strip()  # text: the policy judges it
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
