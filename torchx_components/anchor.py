"""`python -m torchx_components.anchor`: stays to the end of a run; prepares the data and serves the rendezvous store.

It is no member and trains nothing, so nodes may all come and go. It ends when the last node has gone, or at SIGTERM
(exit code 143).
"""

import signal
import sys

from chicle_elastic.start_signals import install

if __name__ == "__main__":  # before anything that takes long
    install(
        "python -m torchx_components.anchor",
        {number: 128 + number for number in (signal.SIGTERM, signal.SIGINT)},
    )

import argparse
import selectors
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.cli.signals import orderly_end
from chicle_elastic.cluster.rendezvous.store import StoreServer, format_endpoint
from chicle_elastic.errors import ChicleError
from chicle_elastic.transports.secret import JobSecret
from torchx_components.meeting import SECRET_NAME, MeetingPlace

FIRST_NODE_S = 600.0
"""How long the scheduler may take to start the first node."""
LAST_NODE_S = 5.0
"""After the last node has gone, another one may still come for so long."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m torchx_components.anchor", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run, which all nodes see")
    parser.add_argument("--train", type=Path, required=True, help="data file or chunk folder")
    parser.add_argument("--nodes", type=int, required=True, help="most nodes that there will be")
    parser.add_argument("--host", default="127.0.0.1", help="address of this host, for the nodes; default: %(default)s")
    arguments = parser.parse_args(argv)
    try:
        with orderly_end():
            return run(arguments.run, arguments.train, max_nodes=arguments.nodes, host=arguments.host)
    except ChicleError as error:
        print(f"anchor: {error}", file=sys.stderr)
        return 1


def run(run: Path, train: Path, *, max_nodes: int, host: str) -> int:
    """Serve a run to its end; returns the exit code.

    Raises:
        ChicleError: The data cannot be used, or the anchor cannot listen there.
    """
    run.mkdir(parents=True, exist_ok=True)
    JobSecret.load_or_create(run / SECRET_NAME)
    data = prepare(train, run, max_nodes)
    with StoreServer(f"{host}:0") as store, socket.create_server((host, 0)) as listener:
        presence = format_endpoint(host, listener.getsockname()[1])
        MeetingPlace(store=store.endpoint, presence=presence, data=str(data)).write(run)
        print(f"anchor: rendezvous store at {store.endpoint}", flush=True)
        has_come = wait_for_nodes(listener)
    shutil.rmtree(run, ignore_errors=True)
    if not has_come:
        print(f"anchor: no node has come within {FIRST_NODE_S:g} s", file=sys.stderr)
    return 0 if has_come else 1


def prepare(train: Path, run: Path, max_nodes: int) -> Path:
    """The chunk folder to train on; a data file is converted once, for all nodes.

    Raises:
        DataError: The file cannot be read.
    """
    if train.is_dir():
        return train
    return convert([train], run / "data", ConvertOptions(max_tasks=max_nodes)).path


def wait_for_nodes(listener: socket.socket) -> bool:
    """Wait until nodes have come and all of them have gone; whether any came."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        has_come = False
        while True:
            is_alone = len(selector.get_map()) == 1
            ready = selector.select((LAST_NODE_S if has_come else FIRST_NODE_S) if is_alone else None)
            if not ready:
                return has_come
            for key, _ in ready:
                if key.fileobj is listener:
                    selector.register(listener.accept()[0], selectors.EVENT_READ)
                    has_come = True
                elif isinstance(key.fileobj, socket.socket):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()


if __name__ == "__main__":
    sys.exit(main())
