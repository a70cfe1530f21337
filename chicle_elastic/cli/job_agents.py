"""The agents of the jobs that a rendezvous store serves, for commands that ask them and take no part in a job.

A command reads the store, proves the job secret to an agent over a link, and hangs up. It sends no hello, so no agent
takes it for a node.
"""

import argparse
import secrets
import select
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import ProtocolError
from chicle_elastic.settings import Settings
from chicle_elastic.transports import links
from chicle_elastic.transports.key_values import KeyValueClient
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tls import TlsIdentity

CONNECT_S = 5.0
ANSWER_S = 5.0


def add_peer_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare --peer, which does `what`, and the options by which this host proves to be one of the job's."""
    parser.add_argument("--peer", metavar="HOST[:PORT]", help=what)
    parser.add_argument(
        "--secret-file",
        type=Path,
        metavar="PATH",
        help="with --peer: file of the job secret; default: CHICLE_SECRET or CHICLE_SECRET_FILE",
    )
    parser.add_argument(
        "--tls", type=Path, metavar="FOLDER", help="with --peer: folder of the certificates, as for the launcher"
    )


def find_secret(secret_file: Path | None) -> JobSecret | None:
    """The secret of that file, else of the environment (CHICLE_SECRET, CHICLE_SECRET_FILE); None for neither. Raises
    UsageError when there is no secret in it."""
    settings = Settings.from_environment()
    if secret_file is None and settings.secret is not None:
        return JobSecret.from_text(settings.secret, where="CHICLE_SECRET")
    path = secret_file or settings.secret_file
    return None if path is None else JobSecret.load(path)


def connect(endpoint: str) -> StoreConnection:
    """Connect to the rendezvous store at "host:port" or "host". Raises StoreUnreachableError when it does not answer,
    UsageError when the endpoint is malformed."""
    return StoreConnection(endpoint).connect(timeout_s=CONNECT_S)


def nodes_by_job(store: StoreConnection) -> dict[str, list[str]]:
    """The names of the nodes whose agents have come to this store, by the run id of their job; both sorted. Raises
    StoreUnreachableError when it does not answer."""
    keys = [key.split("/") for key in store.call(KeyValueClient.list_keys) if key.isprintable()]  # of any writer
    found: dict[str, list[str]] = {}
    for key in sorted(keys):
        if len(key) == 4 and (key[0], key[2]) == ("chicle", "agent"):
            found.setdefault(key[1], []).append(key[3])
    return found


def greet(
    address: str, secret: JobSecret, *, command: str, tls: TlsIdentity | None, ask: str | None = None
) -> Mapping[str, Any]:
    """Prove the secret to an agent, and return what it says. Raises PeerLostError when no agent answers there,
    ProtocolError when it accepts the link and does not answer, or proves another secret.

    Args:
        ask: Kind of a question; its answer is returned. None: the greeting, which an agent sends unasked.
    """
    name = f"{command}-{socket.gethostname()}#{secrets.token_hex(4)}"
    awaited = "hello" if ask is None else ask.removeprefix("get_")
    with links.connect(address, secret, name=name, timeout_s=CONNECT_S, tls=tls) as link:
        if ask is not None:
            link.send({"kind": ask})
        end_s = time.monotonic() + ANSWER_S
        while (left_s := end_s - time.monotonic()) > 0:
            select.select([link], [], [], left_s)
            for message in link.receive():
                if isinstance(message, dict) and message.get("kind") == awaited:
                    return message
    raise ProtocolError(
        f"{link.peer} accepted a link and did not answer within {ANSWER_S:g} s; it is stopped, or busy, or of another "
        "version of Chicle"
    )
