"""What the store says about a job: open, over, or nothing that can be read."""

import pytest

from chicle_elastic.cluster.rendezvous.errors import JobClosedError, StoreUnreachableError
from chicle_elastic.cluster.rendezvous.store import StoreServer, round_prefix
from tests.cluster.rendezvous.rendezvous_agents import RUN_ID, Party, join, party, wait_for


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
