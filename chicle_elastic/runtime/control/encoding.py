"""Messages between agent and task as JSON text, and the check that both ends have the same version of them.

It stands apart from `messages` because a fit in process uses some of those and encodes none: it need not load msgspec.
"""

import json
from typing import Any

from chicle_elastic.errors import ProtocolError
from chicle_elastic.runtime.control.messages import VERSION, Hello, Message, Welcome
from chicle_elastic.scheduling import codec


def encode(message: Message) -> bytes:
    """A message as JSON text, with its "type". Raises ValueError when there is a number in it that is not finite."""
    return codec.encode(message, Message)


def decode(text: bytes, known: Any) -> Message:
    """The message in JSON text. Raises ProtocolError when it is no such message, and the text says which part is wrong;
    or the other side has another version.

    Args:
        known: `TaskMessage` or `AgentMessage`: what the other side may say.
    """
    try:
        message: Message = codec.decode(text, known)
    except ProtocolError:
        _require_version(_version_in(text))  # a greeting of another version may have other fields
        raise
    if isinstance(message, Hello | Welcome):
        _require_version(message.version)
    return message


def _version_in(text: bytes) -> Any:
    """The version that a greeting names, whatever else is in it; ours for anything else."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return VERSION
    is_greeting = isinstance(data, dict) and data.get("type") in (Hello.__name__, Welcome.__name__)
    return data.get("version", VERSION) if is_greeting else VERSION


def _require_version(found: Any) -> None:
    if found != VERSION:
        raise ProtocolError(
            f"the other end of the control channel speaks version {found!r} and this one version {VERSION}; agent and "
            "task need the same release of chicle-elastic"
        )
