"""User messages between the parties of a job: solvers in their tasks; trainer and policies in the task of rank 0.

The router puts a message for a party in this task into its mailbox, and sends every other one to the agent, which
forwards it.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.control.messages import Deliver, UserMessage
from chicle_elastic.runtime.training.uni_task import EVERYONE, TRAINER, Mailboxes, require_json
from chicle_elastic.values import POLICY_PREFIX, AddressedMessage, Message


class MessageRouter:
    """Of one task."""

    def __init__(self, node: NodeId, send: Callable[[UserMessage], None], policies: Iterable[str] = ()) -> None:
        self.has_trainer = False  # whether this is the task of rank 0, which has the trainer and the policies
        self._at_rank_0 = (TRAINER, *(f"{POLICY_PREFIX}{name}" for name in policies))
        self._node = node
        self._send = send
        self._mailboxes = Mailboxes(policies)
        self._mailboxes.add(node)

    def post(self, sender: str, to: str, payload: Any) -> None:
        """Send a message; one for a policy that the job does not have is dropped as by `Mailboxes.post`. Raises
        UsageError when the payload is not made of JSON values."""
        require_json(payload)
        if to.startswith(POLICY_PREFIX) and to not in self._at_rank_0:
            self._mailboxes.post(sender, to, payload)
            return
        here = self._parties_here(to)
        for party in here:
            if party != sender:
                self._mailboxes.post(sender, party, payload)
        if to == EVERYONE or not here:
            self._send(UserMessage(sender=sender, to=to, payload=json.dumps(payload)))

    def deliver(self, message: Deliver) -> None:
        """Deliver a message from the agent; drops a message for a party that is not in this task."""
        for party in self._parties_here(message.to):
            if party != message.sender:
                self._mailboxes.post(message.sender, party, json.loads(message.payload))

    def deliver_of_policies(self, messages: Sequence[AddressedMessage], iteration: int) -> None:
        """Deliver the messages of policies that an iteration brings, as `Mailboxes.deliver` does."""
        self._mailboxes.deliver(messages, iteration, self._parties_here(EVERYONE))

    def take(self, name: str) -> Message | None:
        """The oldest message for a party, or None."""
        return self._mailboxes.take(name)

    def _parties_here(self, to: str) -> list[str]:
        parties = [str(self._node), *(self._at_rank_0 if self.has_trainer else ())]
        return parties if to == EVERYONE else [party for party in parties if party == to]
