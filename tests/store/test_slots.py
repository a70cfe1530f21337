"""The allocator: every slot in one state, leased slots never given out again, misuse named."""

import numpy as np
import pytest

from chicle_elastic.errors import CapacityError, UsageError
from chicle_elastic.store.slots import SlotAddress, SlotAllocator, SlotState


def make_allocator(*arena_sizes: int) -> SlotAllocator:
    """An allocator over arenas of these numbers of slots."""
    allocator = SlotAllocator()
    for num_slots in arena_sizes:
        allocator.add_arena(num_slots)
    return allocator


def test_slots_are_given_out_lowest_address_first():
    """So that a store that shrank fills its first arenas again."""
    allocator = make_allocator(2, 2)
    addresses = [allocator.allocate() for _ in range(4)]
    assert addresses == [(0, 0), (0, 1), (1, 0), (1, 1)]
    allocator.free(SlotAddress(1, 0))
    allocator.free(SlotAddress(0, 1))
    assert allocator.allocate() == (0, 1)


def test_no_free_slot_is_an_error_that_says_what_the_slots_are_doing():
    """The figures tell a full store from one with stuck leases."""
    allocator = make_allocator(3)
    allocator.reserve()
    leased = allocator.allocate()
    allocator.allocate()
    allocator.lease(leased)
    allocator.free(leased)
    with pytest.raises(CapacityError, match=r"all 3 slots .*1 used, 1 reserved .*1 freed but still leased"):
        allocator.reserve()


def test_freeing_twice_names_the_slot():
    """The second owner of the slot would lose its chunk."""
    allocator = make_allocator(1, 4)
    for _ in range(5):
        allocator.allocate()
    allocator.free(SlotAddress(1, 3))
    with pytest.raises(UsageError, match=r"cannot free slot 3 of arena 1: it is free.*freed before"):
        allocator.free(SlotAddress(1, 3))


def test_freeing_a_draining_slot_twice_names_the_slot():
    """A slot that only waits for its readers is freed already."""
    allocator = make_allocator(1)
    address = allocator.allocate()
    allocator.lease(address)
    allocator.free(address)
    with pytest.raises(UsageError, match=r"cannot free slot 0 of arena 0: it is draining"):
        allocator.free(address)


def test_a_leased_slot_is_not_reused_before_its_last_release():
    """A reader of a freed source must not see another chunk appear under it."""
    allocator = make_allocator(1)
    address = allocator.allocate()
    allocator.lease(address)
    allocator.lease(address)
    allocator.free(address)
    for num_left in (2, 1):
        assert allocator.num_leases(address) == num_left
        with pytest.raises(CapacityError):
            allocator.reserve()
        allocator.release(address)
    assert allocator.reserve() == address


def test_a_lease_given_back_before_the_slot_is_freed_leaves_it_used():
    """Serving a copy that was abandoned changes nothing at the source."""
    allocator = make_allocator(1)
    address = allocator.allocate()
    allocator.lease(address)
    allocator.release(address)
    assert allocator.state(address) is SlotState.USED
    allocator.free(address)
    assert allocator.state(address) is SlotState.FREE


def test_an_abandoned_reservation_is_free_again():
    """A copy that never arrived costs nothing."""
    allocator = make_allocator(1)
    allocator.free(allocator.reserve())
    assert allocator.stats().free == 1


@pytest.mark.parametrize("verb", ["commit", "lease", "release", "free"])
def test_a_free_slot_refuses_everything_but_being_reserved(verb):
    """Each refusal names the slot and its state."""
    allocator = make_allocator(3)
    with pytest.raises(UsageError, match=f"cannot {verb} slot 2 of arena 0: it is free"):
        getattr(allocator, verb)(SlotAddress(0, 2))


def test_a_reserved_slot_cannot_be_leased():
    """Its bytes are still arriving."""
    allocator = make_allocator(1)
    address = allocator.reserve()
    with pytest.raises(UsageError, match="cannot lease slot 0 of arena 0: it is reserved, not used"):
        allocator.lease(address)


def test_releasing_what_is_not_leased_is_an_error():
    """Otherwise one reader's double release would take away another's lease."""
    allocator = make_allocator(1)
    address = allocator.allocate()
    with pytest.raises(UsageError, match="cannot release slot 0 of arena 0: it is not leased"):
        allocator.release(address)


@pytest.mark.parametrize("address", [(0, 2), (1, 0), (-1, 0), (0, -1)])
def test_an_address_outside_the_arenas_is_an_error(address):
    """Also negative ones, which Python would count from the end."""
    allocator = make_allocator(2)
    with pytest.raises(UsageError, match=r"there is no slot .* the arenas have \[2\] slots"):
        allocator.free(SlotAddress(*address))


@pytest.mark.parametrize("num_slots", [0, -1])
def test_an_arena_without_slots_is_an_error(num_slots):
    """It would only hide a wrong computation of sizes."""
    with pytest.raises(UsageError, match=f"an arena of {num_slots} slots"):
        make_allocator(num_slots)


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_agree_with_a_simple_model(seed):
    """Thousands of legal operations: the model is a dict of slots with a state and a count of leases each."""
    rng = np.random.default_rng(seed)
    allocator = make_allocator(3, 5)
    model = {SlotAddress(arena, slot): ("free", 0) for arena, size in enumerate((3, 5)) for slot in range(size)}

    def pick(*wanted: str) -> SlotAddress | None:
        fitting = [address for address, (state, _) in model.items() if state in wanted]
        return fitting[rng.integers(len(fitting))] if fitting else None

    for _ in range(500):
        verb = rng.choice(["reserve", "commit", "lease", "release", "free"])
        if verb == "reserve":
            expected = min((address for address, (state, _) in model.items() if state == "free"), default=None)
            if expected is not None:
                assert allocator.reserve() == expected
                model[expected] = ("reserved", 0)
        elif verb == "commit" and (address := pick("reserved")):
            allocator.commit(address)
            model[address] = ("used", 0)
        elif verb == "lease" and (address := pick("used")):
            allocator.lease(address)
            model[address] = ("used", model[address][1] + 1)
        elif verb == "release" and (address := pick("used", "draining")) and model[address][1]:
            allocator.release(address)
            state, leases = model[address]
            model[address] = ("free" if state == "draining" and leases == 1 else state, leases - 1)
        elif verb == "free" and (address := pick("used", "reserved")):
            allocator.free(address)
            leases = model[address][1]
            model[address] = ("draining" if leases else "free", leases)
        seen = {address: (allocator.state(address).value, allocator.num_leases(address)) for address in model}
        assert seen == model
        stats = allocator.stats()
        counts = [state for state, _ in model.values()]
        assert stats.free == counts.count("free")
        assert stats.reserved == counts.count("reserved")
        assert stats.used == counts.count("used")
        assert stats.draining == counts.count("draining")
        assert stats.total == 8
        assert stats.leases == sum(leases for _, leases in model.values())
