"""A store as torch knows one: for NCCL, and for the agents of plain torchrun."""

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from chicle_elastic.runtime.collectives.signed_store import SignedStore
from chicle_elastic.transports.key_values import KeyValueClient


def torch_store(store: KeyValueClient | SignedStore) -> Any:
    """A `torch.distributed.Store` whose operations are those of `store`; of a signed one those that NCCL uses. Keep the
    object for as long as torch uses it: in C++ lives no more than a pointer to it."""
    return _store_class()(store)


@functools.cache  # torch takes a second to import, and no module here imports it at its top
def _store_class() -> type[Any]:
    from torch.distributed import DistStoreError, Store

    class TorchStore(Store):
        """See `torch_store`."""

        timeout: timedelta

        def __init__(self, store: Any) -> None:
            super().__init__()
            self._store = store

        def set(self, key: str, value: str | bytes) -> None:
            self._store.set(key, value)

        def get(self, key: str) -> bytes:
            return self.multi_get([key])[0]

        def multi_get(self, keys: Sequence[str]) -> list[bytes]:
            return self._wait(keys, self.timeout)

        def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
            for key, value in zip(keys, values, strict=True):
                self._store.set(key, value)

        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            self._wait(keys, self.timeout if timeout is None else timeout)

        def check(self, keys: Sequence[str]) -> bool:
            return self._store.get_all(keys) is not None

        def add(self, key: str, amount: int) -> int:
            return int(self._store.add(key, amount))

        def _wait(self, keys: Sequence[str], timeout: timedelta) -> list[bytes]:
            found: list[bytes] | None = self._store.get_all(keys, wait_s=timeout.total_seconds())
            if found is None:
                raise DistStoreError(f"the store has no {', '.join(keys)} after {timeout.total_seconds():g} s")
            return found

    return TorchStore
