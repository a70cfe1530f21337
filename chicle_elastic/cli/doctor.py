"""Show what this node can do: memory and cores, each transport, torch, schedulers; and what to install for the rest.

It changes nothing, and contacts no other host but with --peer, which tries each step of joining a job whose rendezvous
store is on another host, and exits with 1 when one fails. A transport that cannot be used is no error: the exit code is
0, and the line says exactly why it cannot. Run it on a compute node, inside of the job's container: the login node may
have other devices and other limits. With --log it says what to do about the warnings and errors in what an agent has
printed.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict

from chicle_elastic import __version__
from chicle_elastic.cgroups import memory_headroom
from chicle_elastic.cli.agent_lines import explained
from chicle_elastic.cli.job_agents import add_peer_arguments
from chicle_elastic.cli.peer_check import NO, YES, Finding, check_peer
from chicle_elastic.errors import ChicleError
from chicle_elastic.scheduling.text import bytes_text
from chicle_elastic.settings import available_cores
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.addresses import new_unix
from chicle_elastic.transports.base import Region
from chicle_elastic.transports.checksum import fastest_crc32
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.shm import ShmTransport
from chicle_elastic.transports.sockets import Transport
from chicle_elastic.transports.tcp import TcpTransport
from chicle_elastic.transports.verbs.device import choose_port, device_names, open_context, ports_of
from chicle_elastic.transports.verbs.library import RdmaUnavailableError
from chicle_elastic.transports.verbs.transport import VerbsTransport

PROBE_BYTES = 1 << 20
PROBE_TIMEOUT_S = 5.0
TOPIC_WIDTH, VERDICT_WIDTH = 14, 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle doctor` takes."""
    parser.add_argument(
        "--host", default="127.0.0.1", help="address of this node that its peers know (default: loopback)"
    )
    parser.add_argument(
        "--rdma-device", metavar="NAME", help="RDMA device to try (default: the one that fits the host)"
    )
    add_peer_arguments(
        parser,
        "try step by step whether this host can join the job whose rendezvous store is there; run it on each host",
    )
    log = argparse.FileType(errors="replace")
    parser.add_argument("--log", type=log, metavar="FILE", help="explain what an agent has printed there; - for stdin")
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 when a step towards a peer has failed."""
    if arguments.log is not None:
        with arguments.log:
            for line, advice in explained(arguments.log):
                print(f"{line}\n    -> {advice}")
        return 0
    if arguments.peer:
        findings = check_peer(arguments.peer, secret_file=arguments.secret_file, tls=arguments.tls)
        return int(any(finding.verdict == NO for finding in _show(findings, is_json=arguments.json)))
    _show(
        [*_machine(), *_transports(arguments.host, arguments.rdma_device), *_packages(), *_schedulers()],
        is_json=arguments.json,
    )
    return 0


def _show(findings: Iterable[Finding], *, is_json: bool) -> list[Finding]:
    """Print findings as they come; as JSON when all are there."""
    if is_json:
        shown = list(findings)
        print(json.dumps([asdict(finding) for finding in shown], indent=2))
        return shown
    print(f"chicle {__version__}, Python {platform.python_version()}, {platform.platform()}")
    shown = []
    for finding in findings:
        print(
            f"  {finding.topic:{TOPIC_WIDTH}}  {finding.verdict:{VERDICT_WIDTH}}  {finding.detail}".rstrip(), flush=True
        )
        shown.append(finding)
    return shown


def _machine() -> list[Finding]:
    findings = [Finding("cores", str(available_cores()), "for this process: affinity, control groups, OMP_NUM_THREADS")]
    headroom = memory_headroom()
    if headroom is not None:
        findings.append(Finding("memory", bytes_text(headroom.num_bytes), f"{headroom.source} leaves that much"))
    if sys.platform == "linux":
        import resource  # not on Windows

        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        is_unlimited = limit == resource.RLIM_INFINITY
        findings.append(
            Finding(
                "locked memory",
                "no limit" if is_unlimited else bytes_text(limit),
                "RDMA locks all arenas"
                + ("" if is_unlimited else "; root may exceed this, others need LimitMEMLOCK=infinity or ulimit -l"),
            )
        )
    return findings


def _transports(host: str, device: str | None) -> list[Finding]:
    def tried(topic: str, address: str, kind: type[TcpTransport] | type[ShmTransport]) -> Finding:
        try:
            with kind(address, JobSecret.generate(), name="doctor") as transport:
                _probe(transport)
        except ChicleError as error:
            return Finding(topic, NO, str(error))
        return Finding(topic, YES, f"{bytes_text(PROBE_BYTES)} were fetched from this process, {crc32} checks chunks")

    _, crc32 = fastest_crc32()
    return [
        tried("shm", new_unix("doctor"), ShmTransport),
        tried("tcp", f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0", TcpTransport),
        *_rdma(host, device),
    ]


def _rdma(host: str, device: str | None) -> list[Finding]:
    try:
        names = device_names()
    except RdmaUnavailableError as error:
        return [Finding("rdma", NO, str(error))]
    findings = []
    for name in names:
        try:
            context = open_context(name)
        except RdmaUnavailableError as error:
            findings.append(Finding(f"rdma {name}", NO, str(error)))
            continue
        try:
            ports = list(ports_of(context, name))
        finally:
            context.close()
        found = ", ".join(f"port {port.number} at {port.ip or port.gid} (GID {port.gid_index})" for port in ports)
        findings.append(Finding(f"rdma {name}", YES if ports else NO, found or "no port is active with an address"))
    try:
        port = choose_port(host, device)
        with VerbsTransport(
            f"tcp://{port.ip or host}:0", JobSecret.generate(), name="doctor", device=port.device
        ) as probe:
            _probe(probe)
    except ChicleError as error:
        return [*findings, Finding("rdma", NO, str(error))]
    return [
        *findings,
        Finding("rdma", YES, f"{port.device} read {bytes_text(PROBE_BYTES)} of this process"),
    ]


def _probe(transport: Transport) -> None:
    """Fetch some bytes from this very process."""
    with Arena.create(2, slot_bytes=PROBE_BYTES) as arena:
        arena.array(0)[:] = 7
        number = transport.register(arena)
        region = Region(number, 0, PROBE_BYTES)
        transport.fetch(transport.address, region, arena.view(1), timeout_s=PROBE_TIMEOUT_S)


def _packages() -> list[Finding]:
    findings = []
    for package, extra, purpose in (
        ("torch", "cluster", "clusters of agents"),
        ("cloudpickle", "cluster", "code of a notebook on a local cluster"),
        ("isal", "cluster", "checksums at the speed of the wire"),
        ("torchx", "torchx", "torchx run chicle.svm"),
        ("tensorboard", "tensorboard", "scalars of a fit"),
        ("fsspec", "url", "checkpoints and models at a URL (s3:// needs s3fs as well, gs:// gcsfs)"),
    ):
        if importlib.util.find_spec(package) is None:
            findings.append(Finding(package, NO, f"for {purpose}: pip install 'chicle-elastic[{extra}]'"))
        else:
            findings.append(Finding(package, importlib.metadata.version(package), f"for {purpose}"))
    return findings


def _schedulers() -> list[Finding]:
    sbatch = shutil.which("sbatch")
    has_client = importlib.util.find_spec("kubernetes") is not None
    return [
        Finding("slurm", YES if sbatch else NO, sbatch or "sbatch is not in PATH; torchx submits with it"),
        Finding(
            "kubernetes",
            YES if has_client else NO,
            "its Python client is installed" if has_client else "torchx submits with: pip install kubernetes",
        ),
    ]
