"""The rendezvous store as gloo and NCCL see it: every value is signed with the secret of the round.

A round's members tell each other their addresses through the store, which any process that reaches its port may write.
gloo and NCCL believe what they read there, so a foreign process could send a member's connections to itself. Between
them and the store stands this one: `set` signs the value together with its key, `get` verifies it and raises, and no
unsigned byte reaches C++. A key holds one value in the life of a round, and the secret belongs to the round, so an
older signed value cannot be put back.

What it does not do: gloo's port takes connections of any process (SECURITY.md).
"""

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from chicle_elastic.transports.secret import JobSecret


def signed_store(store: Any, prefix: str, secret: JobSecret) -> Any:
    """A `torch.distributed.Store` for the values of one group, which are written once.

    Args:
        store: The connection to the store; every operation of the new one uses it.
        prefix: Of the keys; no other group has it.
        secret: Of the round.
    """
    return _store_class()(store, prefix, secret)


@functools.cache  # torch takes a second to import, and no module here imports it at its top
def _store_class() -> type[Any]:
    from torch.distributed import Store

    class SignedStore(Store):
        """See the top of the module."""

        def __init__(self, store: Store, prefix: str, secret: JobSecret) -> None:
            super().__init__()
            self._store, self._prefix, self._secret = store, prefix, secret

        def _key(self, key: str) -> str:
            return f"{self._prefix}/{key}"

        def set(self, key: str, value: str | bytes) -> None:
            """Sign and write a value."""
            content = value.encode() if isinstance(value, str) else bytes(value)
            full = self._key(key)
            self._store.set(full, self._secret.sign(full, content.hex()).decode("ascii"))

        def get(self, key: str) -> bytes:
            """Wait for a value and verify it.

            Raises:
                SecretError: It was not signed with the secret of the round.
            """
            full = self._key(key)
            return bytes.fromhex(self._secret.verify(full, self._store.get(full)))

        def multi_get(self, keys: Sequence[str]) -> list[bytes]:
            """Wait for several values; NCCL reads those of large groups so."""
            return [self.get(key) for key in keys]

        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            """Wait until all keys are there."""
            names = [self._key(key) for key in keys]
            if timeout is None:
                self._store.wait(names)
            else:
                self._store.wait(names, timeout)

        def check(self, keys: Sequence[str]) -> bool:
            """Whether all keys are there."""
            return self._store.check([self._key(key) for key in keys])

    return SignedStore
