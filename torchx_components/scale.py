"""`python -m torchx_components.scale RUN N`: tell the anchor of a run how many nodes there shall be.

RUN is the run's folder, which the anchor prints; it has the place of the store and the job secret.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from chicle_elastic.cluster.rendezvous.resource_board import ResourceBoard
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import ChicleError, UsageError
from chicle_elastic.transports.secret import JobSecret
from torchx_components.meeting import PLACE_NAME, SECRET_NAME, MeetingPlace


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m torchx_components.scale", description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("nodes", type=int, help="how many, at least 1")
    arguments = parser.parse_args(argv)
    try:
        scale(arguments.run, arguments.nodes)
    except ChicleError as error:
        print(f"scale: {error}", file=sys.stderr)
        return 1
    print(f"scale: {arguments.nodes} nodes are wanted")
    return 0


def scale(run: Path, nodes: int) -> None:
    """Write down how many nodes are wanted.

    Raises:
        UsageError: There is no such run, or fewer than one node is wanted.
        StoreUnreachableError: The anchor is gone.
    """
    if nodes < 1:
        raise UsageError(f"{nodes} nodes cannot be; end the run by cancelling its anchor")
    if not (run / PLACE_NAME).exists():
        raise UsageError(f"{run} is no folder of a run that goes on: it has no {PLACE_NAME}")
    place = MeetingPlace.wait_for(run, 0.0)
    connection = StoreConnection(place.store)
    connection.connect()
    secret = JobSecret.load_or_create(run / SECRET_NAME)
    ResourceBoard(connection, endpoint=place.store, secret=secret).put_scale(nodes)


if __name__ == "__main__":
    sys.exit(main())
