"""The rendezvous store as gloo and NCCL see it: every value is signed with the secret of the round.

A round's members tell each other their addresses through the store, which any process that reaches its port may write.
gloo and NCCL believe what they read there, so a foreign process could send a member's connections to itself. Between
them and the store stands this one: `set` signs the value together with its key, `get` verifies it and raises, and no
unsigned byte reaches C++. A key holds one value in the life of a round, and the secret belongs to the round, so an
older signed value cannot be put back.

Members of gloo, and `socket_group`, each write one value under their rank and ask for those of all others, one by one:
for gloo that is three round trips to the store per member, and the larger part of a stall where a round trip takes
20 ms. With `num_members` the first question for one of them reads all, and the others cost nothing.

What it does not do: gloo's port takes connections of any process (SECURITY.md).
"""

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from chicle_elastic.transports.secret import JobSecret


def signed_store(store: Any, prefix: str, secret: JobSecret, *, num_members: int = 0) -> Any:
    """A `torch.distributed.Store` for the values of one group, which are written once.

    Args:
        store: The connection to the store; every operation of the new one uses it.
        prefix: Of the keys; no other group has it.
        secret: Of the round.
        num_members: Of a group whose members each write a value under a key that ends with their rank, before they read
            any; 0 for a group of another kind.
    """
    return _store_class()(store, prefix, secret, num_members)


@functools.cache  # torch takes a second to import, and no module here imports it at its top
def _store_class() -> type[Any]:
    from torch.distributed import Store

    class SignedStore(Store):
        """See the top of the module."""

        def __init__(self, store: Store, prefix: str, secret: JobSecret, num_members: int) -> None:
            super().__init__()
            self._store, self._prefix, self._secret = store, prefix, secret
            self._num_members = num_members
            self._read: dict[str, bytes] = {}

        def _key(self, key: str) -> str:
            return f"{self._prefix}/{key}"

        def _together(self, key: str) -> list[str]:
            """The keys to be read with this one, itself included."""
            folder, slash, rank = key.rpartition("/")
            if not rank.isdecimal() or int(rank) >= self._num_members:
                return [key]
            return [f"{folder}{slash}{other}" for other in range(self._num_members)]

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
            if key not in self._read:
                keys = self._together(key)
                values = self._store.multi_get([self._key(one) for one in keys])
                for one, value in zip(keys, values, strict=True):
                    full = self._key(one)
                    self._read[one] = bytes.fromhex(self._secret.verify(full, value))
            return self._read[key]

        def multi_get(self, keys: Sequence[str]) -> list[bytes]:
            """Wait for several values; NCCL reads those of large groups so."""
            return [self.get(key) for key in keys]

        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            """Wait until all keys are there."""
            missing = [key for key in keys if key not in self._read]
            names = [self._key(one) for one in dict.fromkeys(one for key in missing for one in self._together(key))]
            if not names:
                return
            if timeout is None:
                self._store.wait(names)
            else:
                self._store.wait(names, timeout)

        def check(self, keys: Sequence[str]) -> bool:
            """Whether all keys are there."""
            return self._store.check([self._key(key) for key in keys])

    return SignedStore
