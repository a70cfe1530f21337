"""Messages of policies in a task: each party has each of them once."""

from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.cluster_task.message_router import MessageRouter
from chicle_elastic.runtime.control.messages import UserMessage
from chicle_elastic.runtime.training.uni_task import Mailboxes
from chicle_elastic.values import AddressedMessage
from chicle_elastic.waits import tell_through


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


def test_a_message_to_a_policy_that_the_job_does_not_have_is_dropped_with_one_line() -> None:
    """By a task of any rank, which knows the policies of its job; those to a policy that there is go their way."""
    lines: list[str] = []
    sent: list[UserMessage] = []
    router = MessageRouter(NodeId("n1"), sent.append, ["tune"])
    with tell_through(lines.append):
        for _ in range(3):
            router.post("n1", "policy:tume", 1)
            router.post("n1", "policy:tune", 2)
    assert [message.to for message in sent] == ["policy:tune"] * 3
    assert lines == ["messages of n1 to policy:tume are dropped: the policies of this job are policy:tune"]


def test_one_process_says_so_as_well_and_practice_does_not() -> None:
    """A warm-up, which knows no policies, is silent; a job without policies is not."""
    lines: list[str] = []
    with tell_through(lines.append):
        Mailboxes().post("trainer", "policy:tune", 1)
        Mailboxes(()).post("trainer", "policy:tune", 1)
    assert lines == ["messages of trainer to policy:tune are dropped: the policies of this job are none"]


def drained(router: MessageRouter, name: str) -> list[object]:
    """The payloads in a mailbox, which is empty then."""
    payloads = []
    while (message := router.take(name)) is not None:
        payloads.append(message.payload)
    return payloads
