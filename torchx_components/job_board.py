"""How processes outside of a job tell its anchor what they want: through the rendezvous store, signed."""

from pathlib import Path

from chicle_elastic.cluster.rendezvous.resource_board import ResourceBoard
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import UsageError
from chicle_elastic.transports.secret import JobSecret
from torchx_components.job_state import run_of, state_of
from torchx_components.meeting import PLACE_NAME, SECRET_NAME, MeetingPlace


def scale(job: Path, nodes: int) -> None:
    """Write down how many members a job shall have from now on. Raises UsageError when there are to be fewer than one,
    or there is no such job, or it is over, StoreUnreachableError when the anchor is gone, DataError when the state of
    the job is damaged.

    Args:
        nodes: >= 1.
    """
    if nodes < 1:
        raise UsageError(f"{nodes} nodes cannot be; end the job by cancelling its anchor")
    _board_of(job).put_scale(nodes)


def drain(job: Path, node: str) -> None:
    """Write down that a member shall hand over its chunks and leave. Raises UsageError when it is no member, or there
    is no such job, or it is over, StoreUnreachableError when the anchor is gone, DataError when the state of the job is
    damaged."""
    board = _board_of(job)
    members = [member.name for member in state_of(job).members]
    if node not in members:
        raise UsageError(f"{node!r} is no member of the job of {job} now; its members are {', '.join(members) or '-'}")
    board.put_notice(node)


def _board_of(job: Path) -> ResourceBoard:
    run = run_of(job)
    if not (run / PLACE_NAME).exists():
        raise UsageError(f"the anchor of {job} prepares its data, or was killed: {run} has no {PLACE_NAME}")
    place = MeetingPlace.wait_for(run, 0.0)
    connection = StoreConnection(place.store).connect()
    return ResourceBoard(connection, secret=JobSecret.load_or_create(run / SECRET_NAME))
