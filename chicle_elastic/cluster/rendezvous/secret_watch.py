"""Reads the file of the job secret again when it has changed: an operator can change the secret of a running job.

    the file        it may have a key on each line. A process proves and signs with all keys that it knows, and accepts
                    each: two processes understand each other, whatever their files say, as long as they share a key
    a new line      each process takes the key, and signs anew with it what lies in the store, whoever wrote it: a node
                    that has ended, say. From then on the old line may go
    a bad file      its keys are not taken: a line says why, once, and the keys of before stay in force

A thread of its own looks at the file, because a file system may hang; only this thread hangs with it. It waits until
the file has not changed between two looks, so that it reads no half-written one. As long as the store cannot be reached
no further change of the file is taken: old keys go when nothing is left that only they have signed.
"""

import logging
import os
import threading
from pathlib import Path

from chicle_elastic.closing import Closing
from chicle_elastic.cluster.rendezvous.errors import StoreUnreachableError
from chicle_elastic.cluster.rendezvous.signed_value import SignedValue
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.disk_watch import asking
from chicle_elastic.errors import UsageError
from chicle_elastic.scheduling.text import count_text
from chicle_elastic.transports.key_values import KeyValueClient
from chicle_elastic.transports.secret import JobSecret

LOOK_S = 1.0

logger = logging.getLogger(__name__)


class SecretWatch(Closing):
    """See the top of the module. Watches until it is closed.

    Args:
        secret: What all of the process proves and signs with.
        path: Its file; None for a secret that cannot change.
        store: The values in it are signed with the secret.
        owner: Name of the process, for the log.
    """

    def __init__(self, secret: JobSecret, path: Path | None, store: StoreConnection, *, owner: str) -> None:
        self._secret, self._store, self._owner = secret, store, owner
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(path,), name="chicle-secret", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closing.set()
        self._thread.join(LOOK_S)  # not longer: it may hang with a file system

    def _watch(self, path: Path | None) -> None:
        taken = seen = None  # what the file was like when its keys were taken, and at the last look
        num_keys: int | None = None  # while the store has values without a signature by each of the keys
        while path is not None and not self._closing.wait(LOOK_S):
            try:
                if num_keys is not None:
                    self._sign_anew()
                    logger.warning(
                        "%s has %s of the job secret now, and so have the values in the store",
                        self._owner,
                        count_text(num_keys, "key"),
                    )
                    num_keys = None
                with asking(path):
                    before, seen = seen, os.stat(path)
                if before is not None and _stamp(before) == _stamp(seen) != taken:
                    taken = _stamp(seen)
                    num_keys = self._secret.reload(path)
            except UsageError as error:
                logger.warning("%s keeps the job secret of before: %s", self._owner, str(error))
            except (StoreUnreachableError, OSError):
                pass  # looks again; a file that is gone has no other keys

    def _sign_anew(self) -> None:
        """Sign what the store holds, where a key of the secret has not signed it. Values of strangers stay as they
        are."""
        for key in self._store.call(KeyValueClient.list_keys):
            value = SignedValue(self._store, key=key, secret=self._secret)
            now = value.read()
            while now.problem is None and now.raw is not None and not self._secret.has_signed(key, now.raw):
                now = value.swap(now, now.value)


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes with the content of a file, and with its owner and mode."""
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
