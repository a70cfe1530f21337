"""One value in the rendezvous store that only processes with the job secret can write: JSON, signed, compare-and-set.

The store accepts writes from any process that reaches it. So `SignedValue` verifies everything that it reads, and
reports one of three things: absent, a value with the job's signature, or a foreign value with the reason why it is not
accepted. The caller decides what to do about a foreign value; it can replace it (`swap` accepts any reading).

A signature does not expire (see `transports.secret`): values that must never be rolled back carry a serial number.
"""

import secrets
from dataclasses import dataclass
from typing import Any

from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import SecretError, UsageError
from chicle_elastic.transports.secret import MAX_SIGNATURES_BYTES, JobSecret

MAX_CELL_BYTES = 1 << 18  # 512 members with long names


@dataclass(frozen=True, slots=True)
class Reading:
    """What a key of the store held at one instant."""

    raw: bytes | None  # the bytes, from any writer; None when the key was absent
    value: Any = None  # the value, if its signature is right; otherwise None
    problem: str | None = None  # why `raw` is not accepted, for a person; None when it is, or when the key was absent


class SignedValue:
    """A key of the store.

    Args:
        store: Connection to the store; every operation is one round trip and never waits for others.
        key: Key in the store; part of what is signed, so that a value cannot be moved to another key.
    """

    def __init__(self, store: StoreConnection, *, key: str, secret: JobSecret) -> None:
        self._store = store
        self._secret = secret
        self.key = key
        # A compare-and-set against a random value, which no process can have written, returns the stored value, or that
        # very random value when the key is absent.
        self._never_written = secrets.token_hex(16)

    def read(self) -> Reading:
        """What the key holds now. Raises StoreUnreachableError when the store does not answer."""
        raw = self._store.compare_set(self.key, self._never_written, self._never_written)
        return self._verify(None if raw == self._never_written.encode() else raw)

    def swap(self, seen: Reading, value: Any) -> Reading:
        """Write a value in place of what was read, unless the key holds something else by now. Raises UsageError when
        the value does not fit `MAX_CELL_BYTES` with signatures by as many keys as a secret may have (a change of the
        secret adds them to what is there), StoreUnreachableError when the store does not answer. Returns what the key
        holds now; `is_in_place` tells whether that is the new value."""
        signed = self._secret.sign(self.key, value)
        num_bytes = MAX_SIGNATURES_BYTES + len(signed.partition(b" ")[2])
        if num_bytes > MAX_CELL_BYTES:
            raise UsageError(
                f"a value of {num_bytes} bytes does not fit the store's key {self.key!r} ({MAX_CELL_BYTES} bytes at "
                "most); use fewer nodes, or shorter names"
            )
        return self._verify(self._store.compare_set(self.key, seen.raw or b"", signed))

    def is_in_place(self, now: Reading, value: Any) -> bool:
        """Whether a reading shows this value, whichever process wrote it."""
        return now.raw == self._secret.sign(self.key, value)

    def _verify(self, raw: bytes | None) -> Reading:
        if raw is None:
            return Reading(None)
        if len(raw) > MAX_CELL_BYTES:
            problem = f"the value under {self.key!r} has {len(raw)} bytes, at most {MAX_CELL_BYTES} are allowed"
            return Reading(raw, problem=problem)
        try:
            return Reading(raw, self._secret.verify(self.key, raw))
        except SecretError as error:
            hint = " (it looks like a pickle, and Chicle never unpickles what it reads here)" if _is_pickle(raw) else ""
            return Reading(raw, problem=f"{error}{hint}")


def _is_pickle(raw: bytes) -> bool:
    """Whether bytes begin as pickles of protocol 2 or later do; torch's own rendezvous wraps them in base64."""
    return (raw[:1] == b"\x80" and raw[-1:] == b".") or raw[:2] == b"gA"
