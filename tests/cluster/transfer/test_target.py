"""A chunk that comes in parts: what its target fetches, and what happens to a slot that is still being written."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from chicle_elastic.cluster.net import fault_points
from chicle_elastic.cluster.transfer.protocol import Order, Part
from chicle_elastic.errors import ProtocolError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import effects, events
from tests.chunk_slots import bytes_in_slot, chunk_in_slot
from tests.cluster.transfer.transfer_nodes import CHUNK, OTHER, SOURCE, TARGET, Pair
from tests.timeouts import timeout_s

ROWS = Order(chunk=CHUNK, source=SOURCE, target=TARGET, round=3, part=Part.ROWS, number=1)
COPY = Order(chunk=CHUNK, source=SOURCE, target=TARGET, round=4, part=Part.ALL, number=4)
COPIED = events.ChunksCopied(chunks=(CHUNK,), source=SOURCE, target=TARGET, round=4)


class Gate:
    """Holds the worker threads that reach a fault point, as a slow network would."""

    def __init__(self, step: str, *, fails: bool = False) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()
        self.steps: list[str] = []
        self._step, self._fails = step, fails

    def open(self) -> None:
        """Let them go on."""
        self._opened.set()

    def __call__(self, step: str, where: dict[str, Any]) -> None:
        """The hook."""
        self.steps.append(step)
        if step == self._step:
            self.reached.set()
            assert self._opened.wait(timeout_s(10))
            if self._fails:
                raise ConnectionError("nothing comes")


@pytest.fixture
def gate() -> Iterator[Callable[..., Gate]]:
    """Makes gates; no worker thread stays behind one."""
    gates: list[Gate] = []

    def make(step: str, *, fails: bool = False) -> Gate:
        gates.append(Gate(step, fails=fails))
        fault_points.enable(gates[-1])
        return gates[-1]

    yield make
    fault_points.enable(None)
    for one in gates:
        one.open()


def test_a_copy_fetches_the_state_where_the_rows_are_and_all_where_they_are_not(pair: Pair) -> None:
    """The rows of the source are damaged after their pre-copy: a copy that read them again would fail."""
    whole = bytes(bytes_in_slot(pair.source.store, CHUNK))
    pair.order(ROWS)
    assert pair.answers() == [events.PrecopiesEnded(node=TARGET, whole=(1,))]
    rows = chunk_in_slot(pair.source.store, CHUNK).rows
    assert isinstance(rows, np.ndarray)
    rows.flags.writeable = True
    rows += 1.0
    pair.order(COPY)
    assert pair.answers() == [COPIED]
    assert bytes(bytes_in_slot(pair.target.store, CHUNK))[: len(whole) // 2] == whole[: len(whole) // 2]
    pair.target.memory.free(effects.FreeChunks(chunks=(CHUNK,), node=TARGET, round=4))
    assert pair.answers() == [events.ChunksFreed(chunks=(CHUNK,), node=TARGET, round=4)]
    pair.order(COPY)
    [answer] = pair.answers()
    assert isinstance(answer, events.CopyFailed)
    assert "CRC" in answer.reason or "checksum" in answer.reason


@pytest.mark.parametrize("fails", [False, True], ids=["they come", "they do not come"])
def test_a_copy_that_is_ordered_while_rows_arrive_goes_on_with_their_slot(
    pair: Pair, gate: Callable[..., Gate], fails: bool
) -> None:
    """No second thread writes there meanwhile; the order for the rows gets no answer any more."""
    held = gate("rows.before_fetch", fails=fails)
    pair.order(ROWS)
    pair.turn_until(held.reached.is_set)
    pair.order(COPY)
    pair.loop.turn(0.0)
    held.open()
    assert pair.answers() == [COPIED]
    steps = [step for step in held.steps if step != "rows.before_told"]
    assert steps == [
        "rows.before_fetch",
        "rows.arrived",
        "copy.before_fetch",
        "copy.before_commit",
        "copy.committed",
    ]
    assert pair.target.memory.is_quiet


def test_a_copy_behind_rows_fails_when_its_source_is_lost(pair: Pair, gate: Callable[..., Gate]) -> None:
    """As soon as the slot can be given back, and not before."""
    held = gate("rows.before_fetch")
    pair.order(ROWS)
    pair.turn_until(held.reached.is_set)
    pair.target.memory.fetch(COPY)
    pair.loop.turn(0.0)
    pair.target.memory.lose_source(SOURCE)
    pair.loop.turn(0.0)
    assert pair.target.answers == []
    assert pair.target.store.slot_stats().reserved == 1
    held.open()
    [answer] = pair.answers()
    assert isinstance(answer, events.CopyFailed)
    assert answer.reason == "n0 is gone"
    assert pair.target.store.slot_stats().reserved == 0


def test_a_pre_copy_that_is_withdrawn_gives_its_slot_back_when_nothing_writes_there(
    pair: Pair, gate: Callable[..., Gate]
) -> None:
    """Whole, or while it arrives; it has no answer of its own then."""
    free = effects.FreeChunks(chunks=(CHUNK,), node=TARGET, round=3)
    freed = events.ChunksFreed(chunks=(CHUNK,), node=TARGET, round=3)
    held = gate("rows.before_fetch")
    pair.order(ROWS)
    pair.turn_until(held.reached.is_set)
    pair.target.memory.free(free)
    pair.loop.turn(0.0)
    assert pair.target.answers == []
    assert pair.target.store.slot_stats().reserved == 1
    held.open()
    assert pair.answers() == [freed]
    assert pair.target.store.slot_stats().reserved == 0
    pair.order(ROWS)
    assert pair.answers() == [events.PrecopiesEnded(node=TARGET, whole=(1,))]
    pair.target.memory.free(free)
    assert pair.answers() == [freed]
    assert pair.target.store.slot_stats().reserved == 0


def test_rows_that_are_whole_stay_when_their_source_is_lost(pair: Pair) -> None:
    """They are those of the chunk, from whichever node its state comes."""
    pair.order(ROWS)
    assert pair.answers() == [events.PrecopiesEnded(node=TARGET, whole=(1,))]
    pair.target.memory.lose_source(SOURCE)
    assert pair.target.store.slot_stats().reserved == 1


def test_rows_that_have_not_begun_to_come_fail_with_their_source(pair: Pair) -> None:
    """Also when the link broke before the order came: nodes that arrive wait for the answer."""
    pair.target.memory.fetch(ROWS)
    pair.turn_until(lambda: pair.target.memory.under_way["wait for memory"] == 0)
    pair.target.memory.lose_source(SOURCE)
    assert pair.answers() == [events.PrecopiesEnded(node=TARGET, failed=(1,))]
    assert pair.target.memory.is_quiet


def test_where_rows_lie_is_said_on_every_new_link_until_they_are_copied(pair: Pair) -> None:
    """Also in the next round: the target may have got the order after the link broke on which it was said."""
    pair.serve(ROWS)
    pair.serve(Order(chunk=OTHER, source=SOURCE, target=NodeId("n2"), round=4, part=Part.ALL, number=4))
    pair.source.said.clear()
    pair.source.memory.peer_up(TARGET)
    [fields] = pair.source.said
    pair.target.memory.places(pair.source.peer, fields)
    pair.target.memory.fetch(ROWS)
    assert pair.answers() == [events.PrecopiesEnded(node=TARGET, whole=(1,))]
    pair.serve(COPY)
    pair.source.said.clear()
    pair.source.memory.peer_up(TARGET)
    [fields] = pair.source.said
    assert [place["part"] for place in fields["places"]] == ["all"]


def test_all_rows_that_a_node_waits_for_have_one_answer(pair: Pair) -> None:
    """Each answer is an event for all agents: it comes when the last rows have come, or have failed."""
    pair.target.memory.fetch(Order(chunk=OTHER, source=NodeId("n2"), target=TARGET, round=3, part=Part.ROWS, number=2))
    pair.order(ROWS)
    pair.turn_until(lambda: pair.target.memory.under_way["fetches"] == 1)
    pair.turn_until(lambda: pair.target.memory.under_way["fetches"] == 0)
    pair.loop.turn(0.0)
    assert pair.target.answers == []
    pair.target.memory.lose_source(NodeId("n2"))
    assert pair.answers() == [events.PrecopiesEnded(node=TARGET, whole=(1,), failed=(2,))]


def test_what_a_node_said_before_it_was_lost_is_void(pair: Pair) -> None:
    """It says it again when it is back: its chunks may lie elsewhere then."""
    fields = pair.serve(COPY)
    pair.target.memory.places(pair.source.peer, fields)
    pair.target.memory.lose_source(SOURCE)
    pair.target.memory.fetch(COPY)
    pair.turn_until(lambda: pair.target.memory.under_way["copies"] == 1)
    pair.loop.turn(0.0)
    assert pair.target.memory.under_way["fetches"] == 0
    pair.target.memory.places(pair.source.peer, fields)
    assert pair.answers() == [COPIED]


def test_the_word_for_another_order_is_not_taken(pair: Pair) -> None:
    """An order waits for the word with its number; that of an earlier one may come late."""
    pair.target.memory.fetch(COPY)
    earlier = Order(chunk=CHUNK, source=SOURCE, target=TARGET, round=3, part=Part.ALL, number=3)
    for order in (earlier, ROWS):
        pair.target.memory.places(pair.source.peer, pair.serve(order))
        pair.turn_until(lambda: pair.target.memory.under_way["wait for memory"] == 0)
        pair.loop.turn(0.0)
        assert pair.target.memory.under_way["fetches"] == 0
    pair.target.memory.places(pair.source.peer, pair.serve(COPY))
    assert pair.answers() == [COPIED]


def test_a_source_that_has_no_such_chunk_says_so(pair: Pair) -> None:
    """A copy fails with its words; of rows it is enough that they do not come."""
    pair.source.memory.free(effects.FreeChunks(chunks=(CHUNK,), node=SOURCE, round=3))
    pair.order(ROWS)
    assert pair.answers() == [events.PrecopiesEnded(node=TARGET, failed=(1,))]
    pair.order(COPY)
    [answer] = pair.answers()
    assert isinstance(answer, events.CopyFailed)
    assert answer.reason.startswith("n0 cannot give it: ")
    assert "chunk 0" in answer.reason


@pytest.mark.parametrize(
    "places",
    [
        None,
        [None],
        [{"chunk": 0, "part": "all"}],
        [{"chunk": 0, "part": "half", "number": 4}],
        [{"chunk": "0", "part": "all", "number": 4}],
        [{"chunk": 0, "part": "all", "number": 4, "region": [0, 0, 8]}],
    ],
    ids=["none", "empty", "no number", "an unknown part", "text", "a region without names"],
)
def test_words_that_make_no_sense_are_refused(pair: Pair, places: Any) -> None:
    """They come from another host."""
    with pytest.raises(ProtocolError):
        pair.target.memory.places(pair.source.peer, {"places": places})


@pytest.mark.parametrize("size_bytes", [-8, 0, 8, 1 << 40], ids=["negative", "none", "too few", "too many"])
@pytest.mark.parametrize("order", [ROWS, COPY], ids=["rows", "all"])
def test_a_region_of_another_size_is_an_order_that_fails(pair: Pair, order: Order, size_bytes: int) -> None:
    """Nothing beside the slot is written, and the slot is given back."""
    fields = pair.serve(order)
    fields["places"][0]["region"]["size_bytes"] = size_bytes
    pair.target.memory.fetch(order)
    pair.target.memory.places(pair.source.peer, fields)
    [answer] = pair.answers()
    assert isinstance(answer, events.PrecopiesEnded | events.CopyFailed)
    assert pair.target.store.slot_stats().reserved == 0
