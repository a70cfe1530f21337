"""Loads chunks from their source straight into slots, in a thread of its own: also while an iteration runs."""

import dataclasses
import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.headers import HEADER_BYTES, Header
from chicle_elastic.chunks.layout import Outside
from chicle_elastic.chunks.sources import ChunkSource, is_shared
from chicle_elastic.chunks.views import NO_STATE, Chunk, StateSpec
from chicle_elastic.ids import ChunkId
from chicle_elastic.runtime.checkpoint.resume import Resumption
from chicle_elastic.runtime.control.messages import Load, Loaded, LoadFailed
from chicle_elastic.store.arena import Arena

CLOSE_S = 1.0  # how long a source that hangs may hold up the end of its task


class ChunkLoader:
    """Executes orders to load, one after the other."""

    def __init__(
        self,
        source: ChunkSource,
        state: StateSpec,
        resumption: Resumption | None,
        answer: Callable[[Loaded | LoadFailed], None],
    ) -> None:
        self._source = source
        self._header_outside: Callable[[ChunkId], Header | None] = getattr(source, "header_outside", lambda _: None)
        self._state = state
        self._resumption = resumption
        self._answer = answer
        self._orders: SimpleQueue[tuple[Load, Arena | None] | None] = SimpleQueue()
        # A daemon: a source that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="chicle-loader", daemon=True)
        self._thread.start()

    def order(self, load: Load, arena: Arena | None) -> None:
        """Queue an order to load a chunk into its slot."""
        self._orders.put((load, arena))

    @property
    def outside(self) -> Outside | None:
        """Return what gives a chunk for its rows, from any thread; None where a chunk has to bring its rows along."""
        return self._rows if is_shared(self._source) else None

    def _rows(self, chunk_id: ChunkId) -> Chunk:
        return self._source.load(chunk_id, NO_STATE)

    def close(self) -> None:
        """Take no more orders. A thread that goes on would keep the data of the job in a process that is used again."""
        self._orders.put(None)
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            load, arena = order
            try:
                self._load(load, arena)
                answer: Loaded | LoadFailed = Loaded(chunk=load.chunk, round=load.round)
            except Exception as error:  # the source may be user code
                reason = f"{type(error).__name__}: {error}"
                answer = LoadFailed(chunk=load.chunk, round=load.round, reason=reason)
            try:
                self._answer(answer)
            except ConnectionError:
                return  # the agent is gone, and the process is about to end

    def _load(self, load: Load, arena: Arena | None) -> None:
        if arena is None:
            raise LookupError(f"the agent has not sent arena {load.arena}")
        state = None if self._resumption is None else self._resumption.state(merged=load.merged, began=load.began)
        header = self._header_outside(load.chunk) if state is None else None
        if header is not None:  # the rows may still be on their way
            into = arena.array(load.slot)
            into[:HEADER_BYTES] = np.frombuffer(header.pack(), np.uint8)
            layout.attach_state(into, self._state, where=f"slot {load.slot}")
            return
        chunk = self._source.load(load.chunk, self._state)
        if state is not None:
            chunk.state[...] = state[chunk.row_ids]
        # Sources do not know the solver cache: only chunks that can move have room for it beside the state.
        chunk = dataclasses.replace(chunk, notes=self._state.fresh_notes(chunk.num_rows))
        layout.encode(chunk, arena.view(load.slot), outside=is_shared(self._source))
