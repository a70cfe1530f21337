"""Called rounds, which need no store; and what the store says about a job: open, over, or nothing that can be read."""

import pytest

from chicle_elastic.cluster.rendezvous.errors import JobClosedError, StoreUnreachableError
from chicle_elastic.cluster.rendezvous.handler import ChicleRendezvousHandler
from chicle_elastic.cluster.rendezvous.store import StoreServer, round_prefix
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from tests.cluster.rendezvous.rendezvous_agents import RUN_ID, Party, join, party, wait_for


def called(handler: ChicleRendezvousHandler, round: int, *members: str) -> tuple[int, int]:
    """Rank and size of a called round."""
    handler.expect(round=round, members=tuple(NodeId(member) for member in members))
    info = handler.next_rendezvous()
    return info.rank, info.world_size


def test_members_and_ranks_of_a_round_are_as_the_scheduler_calls_them() -> None:
    """A joiner comes, the first rank leaves, another dies."""
    with party() as cluster:
        second = cluster.handler("n1")
        assert called(second, 1, "n0", "n1", "n2") == (1, 3)
        assert called(second, 2, "n2", "n0", "n3", "n1") == (3, 4)
        assert called(second, 5, "n1", "n3") == (0, 2)


def test_a_called_round_needs_no_store() -> None:
    """The members have met in the log; a store that is gone must not stop a job that changes its members."""
    with StoreServer() as host:
        handler = Party(host).handler("n0")
    with pytest.raises(StoreUnreachableError):
        handler.is_closed()
    assert called(handler, 1, "n0", "n1") == (0, 2)


def test_the_end_of_one_agent_does_not_close_the_rendezvous_for_the_others() -> None:
    """After called rounds; that of plain torchrun does."""
    with party() as cluster:
        first, second = cluster.handlers(2)
        called(second, 1, "n0", "n1")
        assert second.shutdown()
        assert not first.is_closed()


def test_rounds_have_to_be_called_properly() -> None:
    """Slips of the agent are errors at the place of the slip."""
    with party() as cluster:
        handler = cluster.handler("n0")
        with pytest.raises(UsageError, match="include this node"):
            called(handler, 1, "n1", "n2")
        called(handler, 1, "n0")
        with pytest.raises(UsageError, match=r"call expect\(...\) before each"):
            handler.next_rendezvous()


def test_no_node_joins_a_closed_job() -> None:
    """The end of the job is said by those who finished it."""
    with party() as cluster:
        first, late = cluster.handlers(2)
        late.entry.require_open()
        first.set_closed(is_success=True)
        late.set_closed()  # of no use: how it ended is said once
        assert late.is_closed()
        with pytest.raises(JobClosedError, match="n1 comes too late") as caught:
            join([late])
        assert caught.value.is_success
        assert not caught.value.is_late, "it was there before the end, as one of more nodes than the job needed"
        with pytest.raises(JobClosedError, match="is over"):
            late.entry.require_open()
        [later] = cluster.handlers(1)
        with pytest.raises(JobClosedError, match="--rdzv-id") as caught:
            later.entry.require_open()
        assert caught.value.is_late


def test_a_restarted_store_learns_again_that_the_job_is_over() -> None:
    """It is empty, and a node that asks it would begin the job afresh."""
    with StoreServer() as host:
        endpoint = host.endpoint
        cluster = Party(host)
        first, late = cluster.handlers(2)
        first.set_closed(is_success=True)
    with StoreServer(endpoint):
        wait_for(first.entry.store)
        wait_for(late.entry.store)
        late.entry.require_open()
        first.entry.restore()
        late.entry.restore()
        with pytest.raises(JobClosedError, match="is over"):
            late.entry.require_open()


def test_keys_of_old_rounds_are_pruned() -> None:
    """A job of a thousand rounds must not fill the store with addresses of groups that are gone."""
    with party() as cluster:
        handlers = cluster.handlers(2)
        for number in range(1, 7):
            cluster.store.set(f"{round_prefix(RUN_ID, number)}group/rank/0", "address")
            join(handlers)
        rounds = {key.split("/")[2] for key in cluster.store.list_keys() if key.startswith("chicle/")}
        assert rounds == {"rendezvous", "5", "6"}


def test_an_unreachable_store_is_named_by_its_address() -> None:
    """Whoever asked for it."""
    with pytest.raises(StoreUnreachableError, match=r"the rendezvous store at 127\.0\.0\.1"):
        _lose_store()


def _lose_store() -> None:
    """In a frame of its own: the error holds on to the handler, and that to its connection."""
    with StoreServer() as host:
        handler = Party(host).handler("n0")
    handler.next_rendezvous()
