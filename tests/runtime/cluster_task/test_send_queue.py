"""Messages that a thread sends: in order, none lost, and nobody waits for them."""

import threading

import pytest

from chicle_elastic.runtime.cluster_task.send_queue import SendQueue
from chicle_elastic.runtime.control import messages as control


def broke(number):
    """A message with a number."""
    return control.GroupBroke(round=number, reason="a test")


def test_messages_are_sent_in_order_and_a_flush_waits_for_them():
    """What is said after a flush is heard after everything that was put before it."""
    heard = []
    outbox = SendQueue(heard.append)
    for number in range(100):
        outbox.put(broke(number))
    outbox.flush()
    assert [message.round for message in heard] == list(range(100))
    outbox.flush()
    outbox.close()


def test_nobody_waits_for_a_send():
    """`put` returns while the other side does not take anything; `close` sends what is left."""
    may_send, heard = threading.Event(), []

    def send(message):
        may_send.wait()
        heard.append(message.round)

    outbox = SendQueue(send)
    outbox.put(broke(1))
    outbox.put(broke(2))
    assert heard == []
    may_send.set()
    outbox.close()
    assert heard == [1, 2]
    assert not any(thread.name == "chicle-outbox" for thread in threading.enumerate())


def test_an_agent_that_is_gone_stops_nothing():
    """The listener of the channel finds out, and ends the process; the outbox only goes on."""
    tries = []

    def send(message):
        tries.append(message.round)
        raise BrokenPipeError

    outbox = SendQueue(send)
    outbox.put(broke(1))
    outbox.put(broke(2))
    outbox.flush()
    assert tries == [1, 2]
    outbox.close()


def test_what_cannot_be_said_is_raised_where_it_was_put_and_ends_nothing_else():
    """A flush would otherwise wait for ever for a thread that has died."""
    heard = []

    def send(message):
        if message.round == 2:
            raise ValueError("out of range float values are not JSON compliant")
        heard.append(message.round)

    outbox = SendQueue(send)
    for number in (1, 2, 3):
        outbox.put(broke(number))
    with pytest.raises(ValueError, match="not JSON"):
        outbox.flush()
    assert heard == [1]
    outbox.flush()
    outbox.close()
    assert not any(thread.name == "chicle-outbox" for thread in threading.enumerate())


def test_an_outbox_without_messages_has_no_thread():
    """Flushing and closing it does nothing."""
    outbox = SendQueue(lambda message: None)
    outbox.flush()
    outbox.close()
    assert not any(thread.name == "chicle-outbox" for thread in threading.enumerate())
