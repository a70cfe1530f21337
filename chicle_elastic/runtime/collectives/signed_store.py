"""A round's part of the store, in which every value is signed with the secret of the round.

A round's members tell each other their addresses through the store, which any process that reaches its port may write.
A foreign process could send a member's connections to itself. So `set` signs the value together with its key, and `get`
verifies it and raises. A key holds one value in the life of a round, and the secret belongs to the round, so an older
signed value cannot be put back.

NCCL asks a store of torch's kind (`torch_store`): no unsigned byte reaches C++.
"""

from collections.abc import Sequence

from chicle_elastic.transports.key_values import KeyValueClient
from chicle_elastic.transports.secret import JobSecret


class SignedStore:
    """See the top of the module. `prefix`: of the keys; no other group has it."""

    def __init__(self, store: KeyValueClient, prefix: str, secret: JobSecret) -> None:
        self._store, self._prefix, self._secret = store, prefix, secret

    def set(self, key: str, value: str | bytes) -> None:
        """Sign and write a value."""
        self.trade(key, value, ())

    def get_all(self, keys: Sequence[str], *, wait_s: float = 0.0) -> list[bytes] | None:
        """Wait for values and verify them; None when one of them is not there in time. Raises SecretError when a value
        was not signed with the secret of the round."""
        names = self._names(keys)
        return self._verified(names, self._store.get_all(names, wait_s=wait_s))

    def trade(self, key: str, value: str | bytes, keys: Sequence[str], *, wait_s: float = 0.0) -> list[bytes] | None:
        """Sign and write a value, then do as `get_all`; in one round trip."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        (full,), names = self._names([key]), self._names(keys)
        signed = self._secret.sign(full, content.hex())
        return self._verified(names, self._store.trade(full, signed, names, wait_s=wait_s))

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [f"{self._prefix}/{key}" for key in keys]

    def _verified(self, names: Sequence[str], values: Sequence[bytes] | None) -> list[bytes] | None:
        if values is None:
            return None
        return [bytes.fromhex(self._secret.verify(name, value)) for name, value in zip(names, values, strict=True)]
