"""Called rounds: the members that the scheduler named agree at once, and nobody else gets in."""

import statistics
import time

import pytest
from torch.distributed import PrefixStore
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from chicle_elastic.cluster.rendezvous import ChicleRendezvousHandler
from chicle_elastic.cluster.rendezvous_errors import (
    IdentityError,
    JobClosedError,
    RoundAbandonedError,
    RoundTimeoutError,
    StoreLostError,
)
from chicle_elastic.cluster.store_host import StoreHost, round_prefix
from chicle_elastic.errors import ProtocolError, UsageError
from tests.cluster.rendezvous_agents import RUN_ID, Party, call, join, party, results, start
from tests.timeouts import timeout_s


def test_ranks_follow_the_order_in_which_the_members_were_called() -> None:
    """Rank order is the scheduler's, not that of arrival: the lead is the first living member in it."""
    with party() as cluster:
        handlers = cluster.handlers(3)
        futures = call(handlers, 4, members=("n2", "n0", "n1"))
        assert [info.rank for info in results(futures)] == [1, 2, 0]
        assert {info.world_size for info in results(futures)} == {3}
        assert {handler.round for handler in handlers} == {4}
        assert {handler.members for handler in handlers} == {("n2", "n0", "n1")}


def test_members_are_told_the_driver_s_store_as_the_place_to_meet() -> None:
    """The group of a round is set up at the job's store, which no node serves."""
    with party() as cluster:
        for info in join(cluster.handlers(2), 1):
            place = info.bootstrap_store_info
            assert place is not None
            assert f"{place.master_addr}:{place.master_port}" == cluster.host.endpoint


def test_a_round_waits_for_the_last_member_and_then_not_a_moment_longer() -> None:
    """There is no last call: who is expected is known."""
    with party() as cluster:
        first, second, late = cluster.handlers(3)
        members = ("n0", "n1", "n2")
        early = call([first, second], 1, members=members)
        while len(_members_in_store(first)) < 2:
            time.sleep(0.001)
        assert not any(future.done() for future in early)
        begin_s = time.perf_counter()
        results(early + call([late], 1, members=members))
        assert time.perf_counter() - begin_s < 1.0


def test_four_members_agree_within_30_ms_on_loopback() -> None:
    """The bar of the issue's stalls: the rendezvous is the smallest part of them."""
    with party() as cluster:
        handlers = cluster.handlers(4)
        durations_s = []
        for number in range(1, 16):
            begin_s = time.perf_counter()
            join(handlers, number)
            durations_s.append(time.perf_counter() - begin_s)
        assert statistics.median(durations_s) < 0.030


def test_members_may_change_from_round_to_round() -> None:
    """A joiner comes, the first rank leaves, another dies: each round is what the scheduler called."""
    with party() as cluster:
        first, second, third, joiner = cluster.handlers(4)
        join([first, second, third], 1)
        join([first, second, third, joiner], 2)
        first.leave()
        join([second, third, joiner], 3)
        join([second, joiner], 5)
        assert second.members == ("n1", "n3")
        assert second.round == 5


def test_a_missing_member_is_named_when_the_time_is_up() -> None:
    """The agent declares it lost; so it has to know who."""
    with party() as cluster:
        first, _ = cluster.handlers(2)
        first.expect(round=1, members=("n0", "n1"), timeout_s=0.05)
        with pytest.raises(RoundTimeoutError, match="here are n0, missing is n1") as caught:
            first.next_rendezvous()
        assert isinstance(caught.value, RendezvousTimeoutError)


def test_a_wait_can_be_abandoned_from_another_thread_and_beforehand() -> None:
    """The agent learns over its links that a member is dead, while a thread of it waits for that member."""
    with party() as cluster:
        first, second = cluster.handlers(2)
        (waiting,) = call([first], 1, members=("n0", "n1"))
        first.abandon(round=1, reason="n1 was lost")
        with pytest.raises(RoundAbandonedError, match="round 1 is not waited for any more: n1 was lost"):
            results([waiting])
        second.abandon(round=2, reason="n0 was lost")
        (waiting,) = call([second], 2, members=("n0", "n1"))
        with pytest.raises(RoundAbandonedError, match="n0 was lost"):
            results([waiting])
        join([first, second], 3)


def test_who_comes_to_an_old_round_is_told_so() -> None:
    """A zombie that slept through a round must not take part in it."""
    with party() as cluster:
        first, second, zombie = cluster.handlers(3)
        join([first, second], 7)
        (late,) = call([zombie], 6, members=("n0", "n1", "n2"))
        with pytest.raises(RoundAbandonedError, match="the others are in round 7 already"):
            results([late])
        assert join([first, second], 8)[0].world_size == 2


def test_a_second_agent_of_the_same_name_is_refused_and_the_first_goes_on() -> None:
    """Two agents under one name would answer for each other; the one that came second ends."""
    with party() as cluster:
        first, other, twin = cluster.handler("n0"), cluster.handler("n1"), cluster.handler("n0")
        (waiting,) = call([first], 1, members=("n0", "n1"))
        while not _members_in_store(other):
            time.sleep(0.001)
        (refused,) = call([twin], 1, members=("n0", "n1"))
        with pytest.raises(IdentityError, match=r"another agent takes part in round 1 as n0 .* \(--name\)"):
            results([refused])
        assert [info.world_size for info in results([waiting, *call([other], 1, members=("n0", "n1"))])] == [2, 2]


def test_agents_that_were_told_of_different_members_do_not_make_a_round() -> None:
    """They would set up groups of different sizes and wait for ever."""
    with party() as cluster:
        first, second = cluster.handlers(2)
        (waiting,) = call([first], 1, members=("n0", "n1", "n2"))
        while not _members_in_store(second):
            time.sleep(0.001)
        (wrong,) = call([second], 1, members=("n0", "n1"))
        with pytest.raises(ProtocolError, match="called for n0, n1 here and for n0, n1, n2 elsewhere"):
            results([wrong])
        first.abandon(round=1, reason="end of the test")
        with pytest.raises(RoundAbandonedError):
            results([waiting])


def test_the_end_of_one_agent_does_not_close_the_rendezvous_for_the_others() -> None:
    """torch's launcher calls shutdown() at every normal end, a leaver's included, and after errors too."""
    with party() as cluster:
        first, second, third = cluster.handlers(3)
        join([first, second, third], 1)
        third.leave()
        assert third.shutdown()
        assert second.shutdown()
        assert not first.is_closed()
        join([first, second], 2)


def test_an_agent_that_fails_before_its_first_round_does_not_close_the_rendezvous() -> None:
    """It has no memory for chunks, say; those who train, and those who come later, do not care."""
    with party() as cluster:
        first, failed, late = cluster.handlers(3)
        join([first], 1)
        failed.await_calls()
        assert failed.shutdown()
        assert not first.is_closed()
        join([first, late], 2)


def test_nobody_joins_a_closed_job() -> None:
    """The end of the job is said by those who finished it."""
    with party() as cluster:
        first, late = cluster.handlers(2)
        join([first], 1)
        late.require_open()
        first.set_closed(is_success=True)
        late.set_closed()  # of no use: how it ended is said once
        assert late.is_closed()
        (future,) = call([late], 2, members=("n1",))
        with pytest.raises(JobClosedError, match="n1 comes too late") as caught:
            results([future])
        assert isinstance(caught.value, RendezvousClosedError)
        assert caught.value.is_success
        with pytest.raises(JobClosedError, match="is over"):
            late.require_open()


def test_keys_of_old_rounds_are_pruned() -> None:
    """A job of a thousand rounds must not fill the store with addresses of groups that are gone."""
    with party() as cluster:
        handlers = cluster.handlers(2)
        for number in range(1, 7):
            join(handlers, number)
            PrefixStore(round_prefix(RUN_ID, number) + "group", cluster.store).set("rank/0", "address")
        rounds = {key.split("/")[2] for key in cluster.store.list_keys()}
        assert rounds == {"rendezvous", "5", "6"}


def test_a_lost_store_is_said_by_its_address() -> None:
    """The store lives with the driver: without it nobody can change the membership."""
    host = StoreHost()
    with pytest.raises(StoreLostError, match=r"the rendezvous store at 127\.0\.0\.1"):
        _lose_store(host)


def test_rounds_have_to_be_called_properly() -> None:
    """Slips of the agent are errors at the place of the slip."""
    with party() as cluster:
        handler = cluster.handler("n0")
        with pytest.raises(UsageError, match="this node among them"):
            handler.expect(round=1, members=("n1", "n2"), timeout_s=1.0)
        join([handler], 1)
        with pytest.raises(UsageError, match=r"say expect\(...\) before each"):
            handler.next_rendezvous()
        assert handler.get_backend() == "chicle"
        assert handler.get_run_id() == RUN_ID
        assert start(handler).exception(timeout_s(10)) is not None


def _members_in_store(handler: ChicleRendezvousHandler) -> tuple[str, ...]:
    """Who is at the rendezvous now."""
    _, state = handler._state.look()
    return tuple(member.node for member in state.members) if state else ()


def _lose_store(host: StoreHost) -> None:
    cluster = Party(host)
    handler = cluster.handler("n0")
    join([handler], 1)
    host.close()
    handler.expect(round=2, members=("n0",), timeout_s=timeout_s(10))
    handler.next_rendezvous()
