"""An agent that ends in order says so in the store; one that was replaced says nothing about its successor."""

from collections.abc import Iterator

import pytest

from chicle_elastic.cluster.consensus.term_store import Contact, TermStore
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.ids import NodeId
from chicle_elastic.transports.secret import JobSecret

NODE = NodeId("n0")
SECRET = JobSecret.generate()


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A rendezvous store."""
    with StoreServer() as server:
        yield server.endpoint


def terms(endpoint: str) -> TermStore:
    """The values of a job, for one agent."""
    return TermStore(StoreConnection(endpoint).connect(), run_id="job", secret=SECRET)


def test_an_agent_that_has_ended_is_marked(endpoint: str) -> None:
    """With its incarnation and address; a store that is filled again does not bring it back."""
    agent, other = terms(endpoint), terms(endpoint)
    contact = Contact(life="n0#1", address="tcp://10.0.0.1:4000")
    agent.publish(NODE, contact)
    assert other.find(NODE) == contact
    agent.mark_ended()
    assert other.find(NODE) == Contact(life=contact.life, address=contact.address, has_ended=True)
    assert not agent.publish_again()


def test_an_agent_that_never_joined_marks_nothing(endpoint: str) -> None:
    """It has published nothing: another one of its name may have."""
    agent, namesake = terms(endpoint), terms(endpoint)
    contact = Contact(life="n0#2", address="tcp://10.0.0.1:4000")
    namesake.publish(NODE, contact)
    agent.mark_ended()
    assert agent.find(NODE) == contact


def test_an_agent_does_not_mark_the_next_incarnation_of_its_node(endpoint: str) -> None:
    """A node of the same name has begun meanwhile, and lives."""
    agent, successor = terms(endpoint), terms(endpoint)
    agent.publish(NODE, Contact(life="n0#1", address="tcp://10.0.0.1:4000"))
    contact = Contact(life="n0#2", address="tcp://10.0.0.1:4001")
    successor.publish(NODE, contact)
    agent.mark_ended()
    assert successor.find(NODE) == contact
    successor.mark_ended()
    again = Contact(life="n0#3", address="tcp://10.0.0.1:4002")
    agent.publish(NODE, again)
    assert successor.find(NODE) == again
