"""Messages of policies in a task: each party has each of them once."""

from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.cluster_task.message_router import MessageRouter
from chicle_elastic.values import AddressedMessage


def test_an_iteration_that_begins_again_brings_each_party_its_messages_once() -> None:
    """The task of rank 0 was lost with the mailboxes of the trainer and of policies: their new task delivers again."""
    router = MessageRouter(NodeId("n1"), lambda message: None, ["tune"])
    messages = (
        AddressedMessage(sender="policy:tune", to="*", payload={"x": [1]}),
        AddressedMessage(sender="policy:other", to="policy:tune", payload=2),
    )
    router.deliver_of_policies(messages, 4)
    router.has_trainer = True
    router.deliver_of_policies(messages, 4)
    payloads = {name: drained(router, name) for name in ("n1", "trainer", "policy:tune")}
    assert payloads == {"n1": [{"x": [1]}], "trainer": [{"x": [1]}], "policy:tune": [2]}
    router.deliver_of_policies(messages, 5)
    assert drained(router, "n1") == [{"x": [1]}]


def drained(router: MessageRouter, name: str) -> list[object]:
    """The payloads in a mailbox, which is empty then."""
    payloads = []
    while (message := router.take(name)) is not None:
        payloads.append(message.payload)
    return payloads
