"""From an effect to the method that performs it: one protocol and one dispatch for every shell of the scheduler.

    for effect in scheduler.handle(event, now=now):
        dispatch(effect, shell)

A shell (the in-process runtime, the agent of a node, the simulated cluster) has a method for each effect, named after
it. A new effect needs a case here, and mypy then names every shell that lacks the method.
"""

from typing import Protocol, assert_never

from chicle_elastic.scheduling import effects
from chicle_elastic.scheduling.effects import Effect


class EffectHandler(Protocol):
    """A shell of the scheduler: performs each effect, or leaves it to the node that the effect names."""

    def form_round(self, effect: effects.FormRound) -> None:
        """Agree on a new round; its answer is `RoundFormed`."""
        ...

    def load_chunks(self, effect: effects.LoadChunks) -> None:
        """Get chunks from their source; the answer is `ChunksLoaded` or `LoadFailed`."""
        ...

    def copy_chunk(self, effect: effects.CopyChunk) -> None:
        """Copy a chunk with its state; its answer is `ChunksCopied` or `CopyFailed`."""
        ...

    def precopy_chunk(self, effect: effects.PrecopyChunk) -> None:
        """Copy the immutable part of a chunk; its answer is `PrecopiesEnded`."""
        ...

    def commit_chunk(self, effect: effects.CommitChunk) -> None:
        """The target owns the chunk; without answer."""
        ...

    def free_chunk(self, effect: effects.FreeChunk) -> None:
        """Give a slot back; its answer is `ChunksFreed`."""
        ...

    def attach_chunks(self, effect: effects.AttachChunks) -> None:
        """Tell the task of a node what it has now; without answer."""
        ...

    def start_iteration(self, effect: effects.StartIteration) -> None:
        """Let every member solve; its answer is `IterationFinished` or `IterationAborted`."""
        ...

    def notice_node(self, effect: effects.NoticeNode) -> None:
        """A policy lets a node go; without answer."""
        ...

    def request_nodes(self, effect: effects.RequestNodes) -> None:
        """Tell the resource manager how many nodes the job wants; without answer."""
        ...

    def release_node(self, effect: effects.ReleaseNode) -> None:
        """Let a node under notice go; without answer."""
        ...

    def save_checkpoint(self, effect: effects.SaveCheckpoint) -> None:
        """Write a checkpoint before the job pauses; without answer."""
        ...

    def pause_job(self, effect: effects.PauseJob) -> None:
        """Nothing can be computed until something changes; without answer."""
        ...

    def finish_job(self, effect: effects.FinishJob) -> None:
        """The job is over; without answer."""
        ...

    def log(self, effect: effects.Log) -> None:
        """Show a line to a person; without answer."""
        ...


def dispatch(effect: Effect, handler: EffectHandler) -> None:
    """Let the handler perform an effect, by the method named after it."""
    match effect:
        case effects.FormRound():
            handler.form_round(effect)
        case effects.LoadChunks():
            handler.load_chunks(effect)
        case effects.CopyChunk():
            handler.copy_chunk(effect)
        case effects.PrecopyChunk():
            handler.precopy_chunk(effect)
        case effects.CommitChunk():
            handler.commit_chunk(effect)
        case effects.FreeChunk():
            handler.free_chunk(effect)
        case effects.AttachChunks():
            handler.attach_chunks(effect)
        case effects.StartIteration():
            handler.start_iteration(effect)
        case effects.NoticeNode():
            handler.notice_node(effect)
        case effects.RequestNodes():
            handler.request_nodes(effect)
        case effects.ReleaseNode():
            handler.release_node(effect)
        case effects.SaveCheckpoint():
            handler.save_checkpoint(effect)
        case effects.PauseJob():
            handler.pause_job(effect)
        case effects.FinishJob():
            handler.finish_job(effect)
        case effects.Log():
            handler.log(effect)
        case _:
            assert_never(effect)
