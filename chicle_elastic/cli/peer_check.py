"""`chicle doctor --peer HOST[:PORT]`: whether this host can take part in a job, one step after the other.

    name        the name resolves
    store port  a connection to the rendezvous store
    store       it answers as one
    secret      what the agents wrote into it is signed with the secret that this host has
    tls         with --tls: certificate, key and CA of this host go together
    link NODE   the agent of a node answers, and proves the secret, where agents tell each other what happens
    chunks NODE the same where chunks are fetched, with the throughput of a second
    version NODE  the agent has the version of Chicle that is installed here; it refuses any other
    clock NODE  how far the clock of that host is from this one's; nothing depends on it

A step that fails says what to do, and those that need it are left out. It takes no part in the job: it reads the store,
greets agents and fetches bytes that it throws away.
"""

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chicle_elastic import __version__
from chicle_elastic.cli.job_agents import CONNECT_S, connect, find_secret, greet, nodes_by_job
from chicle_elastic.cluster.rendezvous.store import parse_endpoint
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import ChicleError, PeerLostError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.text import bytes_text
from chicle_elastic.transports.addresses import is_loopback, parse_tcp
from chicle_elastic.transports.base import Pull, Region
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.selector import Endpoints
from chicle_elastic.transports.tcp import TcpTransport
from chicle_elastic.transports.tls import TlsIdentity
from chicle_elastic.transports.wire import RefusedError

YES, NO, UNTRIED = "yes", "no", "-"
FETCH_S = 1.0
FETCH_SIZES = (1 << 20, 1 << 16, 1 << 12, 1 << 9)  # a region of the first arena that is as large as the arena allows
MAX_AGENTS = 16


@dataclass(frozen=True, slots=True)
class Finding:
    """One line."""

    topic: str  # what it is about
    verdict: str  # "yes", "no", "-" for what was not tried, or a figure
    detail: str


def check_peer(endpoint: str, *, secret_file: Path | None, tls: Path | None = None) -> Iterator[Finding]:
    """Try all steps; each finding comes as soon as it is known. Raises UsageError when the endpoint is malformed, or
    the secret or the certificates cannot be used.

    Args:
        endpoint: Of the rendezvous store, "host:port" or "host".
        secret_file: Of the job; None for that of the environment, if there is one.
        tls: Folder of certificate, key and CA; None for links without TLS.
    """
    host, port = parse_endpoint(endpoint)
    secret = find_secret(secret_file)
    identity = None if tls is None else TlsIdentity(tls)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield Finding("name", NO, f"{host} does not resolve ({error.strerror or error}); give its address instead")
        return
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    is_odd = host not in addresses and host != "localhost" and all(is_loopback(address) for address in addresses)
    hint = "; that is this host only: if the store is elsewhere, correct /etc/hosts or give its address"
    yield Finding("name", YES, f"{host} is {', '.join(addresses)}{hint if is_odd else ''}")
    began_s = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S) as sock:
            own = sock.getsockname()[0]
    except OSError as error:
        yield Finding(
            "store port",
            NO,
            f"port {port} of {host} takes no connection ({error.strerror or error}); start the store (--store-only) "
            "on an address that this host reaches, and open the port in firewalls",
        )
        return
    yield Finding("store port", YES, f"connected from {own} in {1e3 * (time.monotonic() - began_s):.1f} ms")
    try:
        store = connect(endpoint)
    except ChicleError as error:
        yield Finding("store", NO, str(error))
        return
    yield Finding("store", YES, "it answers as a rendezvous store")
    if secret is None:
        yield Finding("secret", UNTRIED, "give --secret-file or set CHICLE_SECRET_FILE to go on")
        return
    jobs = nodes_by_job(store)
    if not jobs:
        yield Finding("secret", UNTRIED, "no agent has come to this store yet: start a node, then try again")
    if identity is not None:
        yield Finding("tls", YES, f"certificate, key and CA in {tls} belong together")
    for run_id, nodes in jobs.items():
        yield from _check_job(store, run_id, nodes[:MAX_AGENTS], secret, identity)


def _check_job(
    store: StoreConnection, run_id: str, nodes: Sequence[str], secret: JobSecret, tls: TlsIdentity | None
) -> Iterator[Finding]:
    from chicle_elastic.cluster.consensus.term_store import Contact, TermStore
    from chicle_elastic.cluster.rendezvous.signed_value import SignedValue
    from chicle_elastic.cluster.rendezvous.state import RendezvousState

    terms = TermStore(store, run_id=run_id, secret=secret)
    try:
        term = terms.look()
        round_state = SignedValue(store, key=f"chicle/{run_id}/rendezvous", secret=secret).read()
        members: set[str] | None = None
        if round_state.value is not None:
            state = RendezvousState.from_json(round_state.value)
            members = {str(member.node) for member in state.members}
        contacts: list[tuple[str, Contact | None]] = [(node, terms.find(NodeId(node))) for node in nodes]
    except ChicleError as error:
        yield Finding("secret", NO, str(error))
        return
    forged = [node for node, contact in contacts if contact is None]
    if forged:
        yield Finding(
            "secret", NO, f"the contact of {', '.join(forged)} is not signed with this secret; compare the secret files"
        )
    else:
        lead = f"; {term.lead.partition('#')[0]} leads term {term.term}" if term.lead else ""
        yield Finding("secret", YES, f"{len(nodes)} agents of the job {run_id!r} have signed with it{lead}")
    for node, contact in contacts:
        if contact is not None:
            yield from _check_agent(node, contact.address, secret, tls, is_member=members is None or node in members)


def _check_agent(
    node: str, address: str, secret: JobSecret, tls: TlsIdentity | None, *, is_member: bool
) -> Iterator[Finding]:
    remedy = "; open the ports of the nodes to each other (--port-range), or let it advertise another address"
    try:
        hello = greet(address, secret, command="doctor", tls=tls)
        apart_s = hello["clock_s"] - time.time() if isinstance(hello.get("clock_s"), float) else None
        endpoints = Endpoints.from_json(hello.get("offer"), peer=node)
    except ChicleError as error:
        if not is_member and isinstance(error, PeerLostError):
            yield Finding(
                f"link {node}", UNTRIED, f"no member of the present round, and silent: it may have left ({error})"
            )
        else:
            yield Finding(f"link {node}", NO, f"{error}{remedy if isinstance(error, PeerLostError) else ''}")
        return
    host, _ = parse_tcp(address)
    hint = ", which only this host reaches: other hosts cannot join" if is_loopback(host) else ""
    yield Finding(
        f"link {node}",
        YES,
        f"the agent at {address} has proven the secret{'' if tls is None else ' inside of TLS'}{hint}",
    )
    job = hello.get("job")
    parameters: Mapping[str, Any] = job if isinstance(job, dict) else {}
    has_tls_bulk = parameters.get("tls_bulk") is True
    version = parameters.get("version")
    remedy_of_version = "" if version == __version__ else f", and here {__version__}: install one version on every node"
    yield Finding(
        f"version {node}", NO if remedy_of_version else YES, f"the agent has Chicle {version}{remedy_of_version}"
    )
    try:
        yield Finding(f"chunks {node}", *_fetch(endpoints.tcp, secret, tls if has_tls_bulk else None))
    except ChicleError as error:
        yield Finding(f"chunks {node}", NO, f"{error}{remedy if isinstance(error, PeerLostError) else ''}")
    if apart_s is not None:
        yield Finding(f"clock {node}", f"{apart_s:+.3f} s", "ahead of this host's; for information")


def _fetch(address: str, secret: JobSecret, tls: TlsIdentity | None) -> tuple[str, str]:
    """Verdict and detail: fetch a region of the agent's first arena for a second."""
    with TcpTransport("tcp://127.0.0.1:0", secret, name="doctor", tls=tls) as transport:
        for size_bytes in FETCH_SIZES:
            region, into = Region(0, 0, size_bytes), memoryview(bytearray(size_bytes))
            with contextlib.suppress(RefusedError):
                transport.fetch(address, region, into, timeout_s=CONNECT_S)
                break
        else:
            return YES, f"the agent at {address} has proven the secret; it has no memory to fetch from yet"
        began_s, num_bytes = time.monotonic(), 0
        while (took_s := time.monotonic() - began_s) < FETCH_S:
            for _, error in transport.fetch_each(address, [Pull(region, into, None)] * 8, timeout_s=CONNECT_S):
                if error is not None:
                    raise error
                num_bytes += size_bytes
        return (
            YES,
            f"{bytes_text(round(num_bytes / took_s))}/s from {address}, in pieces of {bytes_text(size_bytes)}",
        )
