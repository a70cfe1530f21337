"""The event file of a node: one JSON object a line, for tests, the demo, and whoever looks for what happened.

Every line has `time` (seconds since 1970), `node` and `kind`; the other fields are named where they are written. The
file is written line by line, so a line that is there is whole, except the last one of a process that was killed.
"""

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from chicle_elastic.ids import NodeId

logger = logging.getLogger(__name__)

SUFFIX = ".events.jsonl"


class EventFile:
    """Writes the events of one node. A context manager that closes it.

    Args:
        folder: Where to, made when it is missing; None writes nothing.
        node: Whose events.
        tell: Is given each line, too.
    """

    def __init__(
        self, folder: Path | None, node: NodeId, *, tell: Callable[[Mapping[str, Any]], object] | None = None
    ) -> None:
        self._node = node
        self._tell = tell
        self._file: TextIO | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / f"{node}{SUFFIX}").open("a", encoding="utf-8", buffering=1)

    @property
    def is_kept(self) -> bool:
        """Whether lines go anywhere."""
        return self._file is not None

    def write(self, kind: str, **fields: Any) -> None:
        """Write one line; numbers that JSON has not become null."""
        if self._file is None:
            return
        line = {"time": time.time(), "node": self._node, "kind": kind, **fields}
        if not self._file.closed:
            try:
                self._file.write(json.dumps(_finite(line), separators=(",", ":"), default=str) + "\n")
            except OSError as error:  # a full disk must not end a node that trains
                logger.warning("no more lines in %s: %s", self._file.name, error)
                with contextlib.suppress(OSError):
                    self._file.close()
        if self._tell is not None:
            self._tell(line)

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def read_events(folder: Path, node: str | None = None) -> Iterator[dict[str, Any]]:
    """The whole lines of one node's file, or of all files of a folder, in the order of each file."""
    for path in sorted(folder.glob(f"{node or '*'}{SUFFIX}")):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


class EventTail:
    """Reads one node's file as it grows.

    Args:
        folder: Where the file is, or will be.
        node: Whose events.
    """

    def __init__(self, folder: Path, node: str) -> None:
        self._path = folder / f"{node}{SUFFIX}"
        self._position = 0

    def read(self) -> list[dict[str, Any]]:
        """The whole lines that have come since the last time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            whole, line_feed, _ = file.read().rpartition(b"\n")
        self._position += len(whole + line_feed)
        return [json.loads(line) for line in whole.splitlines()]


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        is_plain = set(map(type, value)) <= {int}  # the chunks of a page, hundreds of them
        return value if is_plain else [_finite(item) for item in value]
    return value
