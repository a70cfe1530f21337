"""The book of a store: every slot is free, reserved or used, and misuse is named."""

import numpy as np
import pytest

from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.store.slot_table import SlotAddress, SlotTable
from chicle_elastic.values import StateVersion

SIZE_BYTES = 64


def make_table(*arena_sizes: int) -> SlotTable:
    """A book of arenas of these numbers of slots."""
    table = SlotTable(sum(arena_sizes))
    for num_slots in arena_sizes:
        table.add_arena(num_slots)
    return table


def reserve(table: SlotTable, chunk: int) -> SlotAddress:
    """A slot for a chunk."""
    return table.reserve(ChunkId(chunk), SIZE_BYTES).address


@pytest.mark.parametrize("num_slots", [0, -1])
def test_an_arena_without_slots_is_an_error(num_slots):
    """It would only hide a wrong computation of sizes."""
    with pytest.raises(UsageError, match=f"an arena of {num_slots} slots"):
        make_table(num_slots)


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_agree_with_a_simple_model(seed):
    """Thousands of legal operations: the model is a dict of chunks with their slots and states."""
    rng = np.random.default_rng(seed)
    table = make_table(3, 5)
    slots = {SlotAddress(arena, slot) for arena, size in enumerate((3, 5)) for slot in range(size)}
    model: dict[int, tuple[SlotAddress, str]] = {}

    def pick(*wanted: str) -> int | None:
        fitting = [chunk for chunk, (_, state) in model.items() if state in wanted]
        return fitting[rng.integers(len(fitting))] if fitting else None

    for number in range(500):
        verb = rng.choice(["reserve", "commit", "free"])
        free = slots - {address for address, _ in model.values()}
        if verb == "reserve" and free:
            assert reserve(table, number) == min(free)
            model[number] = (min(free), "reserved")
        elif verb == "commit" and (chunk := pick("reserved")) is not None:
            assert table.commit(ChunkId(chunk), SIZE_BYTES, StateVersion()).address == model[chunk][0]
            model[chunk] = (model[chunk][0], "used")
        elif verb == "free" and (chunk := pick("used", "reserved")) is not None:
            table.free(ChunkId(chunk))
            del model[chunk]
        stats, states = table.slot_stats(), [state for _, state in model.values()]
        assert (stats.total, stats.free) == (8, 8 - len(model))
        assert (stats.reserved, stats.used) == (states.count("reserved"), states.count("used"))
        assert {chunk: table.entry(ChunkId(chunk)).address for chunk in model} == {
            chunk: address for chunk, (address, _) in model.items()
        }
        assert set(table.inventory()) == {chunk for chunk, (_, state) in model.items() if state == "used"}
