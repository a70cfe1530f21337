"""One value in the rendezvous store that only parties of the job can write: JSON, signed, compare-and-set.

The store takes writes from everybody. So a cell reports what it found and believes nothing: absent, a value with the
job's signature, or something else, with the reason in words. What to do about something else is for the owner of the
cell, who can put a value in its place (`swap` takes any reading).

A signature has no age (see `transports.secret`): values that may not go back carry a number of their own.
"""

import secrets
from dataclasses import dataclass
from typing import Any

from torch.distributed import Store

from chicle_elastic.cluster.store_host import store_errors
from chicle_elastic.errors import SecretError, UsageError
from chicle_elastic.transports.secret import JobSecret

MAX_CELL_BYTES = 1 << 18  # 512 members with long names


@dataclass(frozen=True, slots=True)
class Reading:
    """What lay in a cell at one instant.

    Attributes:
        raw: The bytes, whoever wrote them; None when there was nothing.
        value: The signed value; None when there is none.
        problem: Why `raw` is not believed, for a person; None when it is, or when there was nothing.
    """

    raw: bytes | None
    value: Any = None
    problem: str | None = None


class SignedCell:
    """A key of the store.

    Args:
        store: Connection to the store; every operation is one round trip and never waits for others.
        endpoint: Where the store is, for messages.
        key: Key in the store; part of what is signed, so that a value cannot be moved to another key.
        secret: The job's.
    """

    def __init__(self, store: Store, *, endpoint: str, key: str, secret: JobSecret) -> None:
        self._store = store
        self._endpoint = endpoint
        self._secret = secret
        self.key = key
        # torch's `get` waits for a missing key. A swap against a value that nobody can have written returns at once:
        # with what is there, or with that very value when there is nothing.
        self._nobodys = secrets.token_hex(16)

    def read(self) -> Reading:
        """What lies there now.

        Raises:
            StoreLostError: The store is gone.
        """
        with store_errors(self._endpoint):
            raw = bytes(self._store.compare_set(self.key, self._nobodys, self._nobodys))
        return self._judge(None if raw == self._nobodys.encode() else raw)

    def swap(self, seen: Reading, value: Any) -> Reading:
        """Put a value in place of what was seen, unless something else lies there by now.

        Args:
            seen: An earlier reading.
            value: Made of JSON values.

        Returns:
            What lies there now: when `raw` is what `sign` made of the value, it is in place (`is_in_place`).

        Raises:
            UsageError: The value is larger than `MAX_CELL_BYTES`.
            StoreLostError: The store is gone.
        """
        signed = self._secret.sign(self.key, value)
        if len(signed) > MAX_CELL_BYTES:
            raise UsageError(
                f"a value of {len(signed)} bytes does not fit the store's key {self.key!r} ({MAX_CELL_BYTES} bytes at "
                "most); use fewer nodes, or shorter names"
            )
        with store_errors(self._endpoint):
            # torch types both as str and takes bytes as they are, which foreign ones have to stay.
            raw = bytes(self._store.compare_set(self.key, seen.raw or b"", signed))  # type: ignore[arg-type]
        return self._judge(raw)

    def is_in_place(self, now: Reading, value: Any) -> bool:
        """Whether a reading shows this value, however it came there."""
        return now.raw == self._secret.sign(self.key, value)

    def _judge(self, raw: bytes | None) -> Reading:
        if raw is None:
            return Reading(None)
        if len(raw) > MAX_CELL_BYTES:
            problem = f"the value under {self.key!r} has {len(raw)} bytes, at most {MAX_CELL_BYTES} are allowed"
            return Reading(raw, problem=problem)
        try:
            return Reading(raw, self._secret.verify(self.key, raw))
        except SecretError as error:
            hint = " (it looks like a pickle, and nothing here is ever unpickled)" if _is_pickle(raw) else ""
            return Reading(raw, problem=f"{error}{hint}")


def _is_pickle(raw: bytes) -> bool:
    """Whether bytes begin as pickles of protocol 2 or later do; torch's own rendezvous wraps them in base64."""
    return (raw[:1] == b"\x80" and raw[-1:] == b".") or raw[:2] == b"gA"
