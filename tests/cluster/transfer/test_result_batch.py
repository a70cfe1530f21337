"""What a worker thread hands to the loop."""

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.transfer.result_batch import WAIT_S, ResultBatch
from chicle_elastic.testing.virtual_clock import VirtualClock


def test_items_that_come_together_arrive_together_and_in_their_order() -> None:
    """And none before the loop turns: it is its thread that takes them."""
    taken: list[list[int]] = []
    clock = VirtualClock()
    with EventLoop(clock=clock) as loop:
        handover = ResultBatch(loop, taken.append)
        handover.add(1)
        handover.add(2)
        clock.advance(WAIT_S)
        handover.add(3)
        assert taken == []
        loop.turn(0.0)
        assert taken == [[1, 2, 3]]
        handover.add(4)
        loop.turn(0.0)
        assert taken == [[1, 2, 3]], "the clock runs from the first one that waits"
        handover.flush()
        handover.flush()
        loop.turn(0.0)
    assert taken == [[1, 2, 3], [4]]
