"""Answers of a node: those that come together are one event of the log."""

from chicle_elastic.cluster.net.event_loop import EventLoop
from chicle_elastic.cluster.transfer.acknowledgements import Acknowledgements
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling import events

HERE, THERE = NodeId("n0"), NodeId("n1")


def copied(chunk: int, source: NodeId = THERE) -> events.ChunksCopied:
    """Chunk after chunk comes here."""
    return events.ChunksCopied(chunks=(ChunkId(chunk),), source=source, target=HERE, round=3)


def said(*answers: events.Event) -> list[events.Event]:
    """What is said when these are given in one turn of the loop."""
    heard: list[events.Event] = []
    with EventLoop() as loop:
        collected = Acknowledgements(loop, heard.append)
        for answer in answers:
            collected.say(answer)
        assert heard == []
        assert not collected.are_said
        loop.turn(0.0)
        assert collected.are_said
    return heard


def test_what_is_kept_is_said_when_it_is_released() -> None:
    """In its order, as one event; what must not wait goes before it."""
    heard: list[events.Event] = []
    failed = events.CopyFailed(chunk=ChunkId(7), source=THERE, target=HERE, round=3, reason="gone")
    with EventLoop() as loop:
        collected = Acknowledgements(loop, heard.append)
        collected.keep(copied(1))
        collected.say(failed)
        loop.turn(0.0)
        assert heard == [failed]
        assert not collected.are_said
        collected.keep(copied(2))
        collected.release()
        loop.turn(0.0)
        assert collected.are_said
    assert heard[1:] == [events.ChunksCopied(chunks=(ChunkId(1), ChunkId(2)), source=THERE, target=HERE, round=3)]


def test_what_differs_in_more_than_the_chunk_stays_apart_and_in_its_order() -> None:
    """Another source, another round, or something else that happened."""
    freed = [events.ChunksFreed(chunks=(ChunkId(chunk),), node=HERE, round=chunk // 2) for chunk in range(4)]
    failed = events.CopyFailed(chunk=ChunkId(7), source=THERE, target=HERE, round=3, reason="gone")
    ended = events.PrecopiesEnded(node=HERE, whole=(1,))
    heard = said(copied(1), copied(2), copied(3, NodeId("n2")), failed, failed, *freed, ended)
    assert heard == [
        events.ChunksCopied(chunks=(ChunkId(1), ChunkId(2)), source=THERE, target=HERE, round=3),
        copied(3, NodeId("n2")),
        failed,
        failed,
        events.ChunksFreed(chunks=(ChunkId(0), ChunkId(1)), node=HERE, round=0),
        events.ChunksFreed(chunks=(ChunkId(2), ChunkId(3)), node=HERE, round=1),
        ended,
    ]
