"""Which addresses and ports the members of a round use, and that they believe signed addresses only."""

import os
import socket
import sys

import pytest

from chicle_elastic.transports.addresses import listen_tcp
from tests.programs import run
from tests.runtime.collectives.members import MEMBER, start, store

__all__ = ["start", "store"]

# (address, port) of the sockets of this process, by the kernel's own tables; 10 is the state of a listener.
SOCKETS = """
import ipaddress, socket, struct

def inodes():
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    links = [os.readlink(path) for path in paths if os.path.lexists(path)]
    return {link[8:-1] for link in links if link.startswith("socket:[")}

def sockets(listening):
    own, found = inodes(), set()
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/self/net/{table}").read().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            host, port = local.split(":")
            words = bytes.fromhex(host)
            raw = b"".join(words[i:i + 4][::-1] for i in range(0, len(words), 4))
            if rest[5] in own and (state == "0A") == listening:
                found.add((str(ipaddress.ip_address(raw)), int(port, 16)))
    return found
"""
SUMS = """
expected = sum(range(1, size + 1))
for length in (1, 7, 30_001):
    buffer = np.full(length, float(rank + 1))
    group.all_reduce(buffer)
    assert (buffer == expected).all(), buffer
    for root in range(size):
        sent = np.arange(length) + 100.0 * rank
        group.broadcast(sent, root=root, to=range(size))
        assert (sent == np.arange(length) + 100.0 * root).all()
codes = np.full(5, rank, dtype=np.uint8)
group.broadcast(codes, root=size - 1, to=range(size))
assert (codes == size - 1).all()
"""


@pytest.mark.parametrize("host", ["127.0.0.5", "::1"])
def test_members_listen_on_the_address_of_the_node_only(start, host):
    """And not on the one that the name of the host resolves to; of IPv4 or IPv6."""
    # Rank 0 says where it listens before rank 1 comes.
    first = (
        SOCKETS
        + f"connecting = later(lambda: connect(group, host={host!r}))\n"
        + "while not (found := sockets(True)):\n    time.sleep(0.001)\n"
        + "say({address for address, _ in found})\nconnecting.join()\n"
    )
    second = SOCKETS + f"hear()\nconnect(group, host={host!r})\n"
    members = start(*[body + SUMS + "group.close()\n" for body in (first, second)])
    assert members[0].hear() == str({host})
    members[1].tell()
    for member in members:
        member.end()


@pytest.mark.parametrize(("size", "host", "first"), [(2, "127.0.0.6", 21200), (4, "::1", 21220)])
def test_with_a_range_all_sockets_of_members_lie_in_it(start, host, size, first):
    """The ports that members listen on."""
    ports = f"first_port={first}, last_port={first + 2 * size}"
    body = SOCKETS + f"connect(group, host={host!r}, {ports})\n" + SUMS
    body += "say(sockets(True))\n"
    # The connections that a member has accepted have the port that it listened on.
    body += f"say(sum({first} <= port <= {first + 2 * size} for _, port in sockets(False)))\n"
    members = start(*[body] * size)
    for rank, member in enumerate(members):
        assert member.hear() == "set()"
        assert int(member.hear()) == (rank < size - 1)
    for member in members:
        member.end()


def test_a_range_without_a_free_port_is_named(start):
    """Before any other member waits for long."""
    with listen_tcp("tcp://127.0.0.7:21250-21250"):
        body = "attempt(connect, group, host='127.0.0.7', first_port=21250, last_port=21250, timeout_s=30)"
        [first, _] = start(body, "")
        said = first.hear()
        assert said.startswith("lost")
        assert "21250" in said


@pytest.mark.parametrize("ports", ["", "first_port=21260, last_port=21269"], ids=["any", "range"])
def test_an_address_of_a_foreign_process_is_not_connected_to(start, store, request, ports):
    """It writes to the store what a member would; rank 1 says why it does not believe it."""
    with socket.create_server(("127.0.0.1", 0)) as trap:
        forged = f"tcp://127.0.0.1:{trap.getsockname()[1]}"
        store.set(f"{request.node.name}/1/0", forged)
        # Rank 0 would overwrite its key: it does not come.
        _, second = start("hear()", f"attempt(connect, group, {ports})")
        said = second.hear()
        assert said.startswith("lost")
        assert "is not signed with the secret" in said
        trap.setblocking(False)
        with pytest.raises(BlockingIOError):
            trap.accept()


def test_members_with_different_secrets_form_no_group(start):
    """A process that can write to the store, and has another secret."""
    body = "attempt(connect, group, timeout_s=60)"
    members = start(body, body.replace("timeout_s", f"key={'cd' * 32!r}, timeout_s"))
    assert "is not signed" in members[1].hear()


@pytest.mark.parametrize("hosts", ["127.0.1.1 {name}\n", ""], ids=["name is 127.0.1.1", "name does not resolve"])
def test_the_name_of_the_host_does_not_matter(tmp_path, hosts):
    """As Debian's installer writes it, and as many containers have it."""
    if os.geteuid() != 0:
        pytest.skip("network and mount namespaces need root")
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{hosts.format(name='alpha')}")
    (tmp_path / "nsswitch.conf").write_text("hosts: files\n")
    body = (
        SOCKETS + "connect(group, host=f'10.77.0.{rank + 1}')\nsay(sorted(sockets(False)))\n" + SUMS + "group.close()\n"
    )
    (tmp_path / "member.py").write_text(MEMBER.replace('"127.0.0.1", port', '"10.77.0.1", port') + body)
    (tmp_path / "run.py").write_text(RUN)
    setup = f"""
set -e
hostname alpha
mount --bind {tmp_path}/hosts /etc/hosts
mount --bind {tmp_path}/nsswitch.conf /etc/nsswitch.conf
ip link set lo up
ip address add 10.77.0.1/32 dev lo
ip address add 10.77.0.2/32 dev lo
exec {sys.executable} {tmp_path}/run.py {tmp_path}/member.py
"""
    done = run("unshare", "--net", "--mount", "--uts", "sh", "-c", setup, seconds=100)
    assert "10.77.0.1" in done.stdout
    assert "127." not in done.stdout


RUN = """
import os, sys
import socket
from chicle_elastic.transports.key_values import KeyValueServer
import chicle_elastic.runtime.collectives.process_group
program, (read, write) = open(sys.argv[1]).read(), os.pipe()
for rank in range(2):
    if not os.fork():
        sys.argv[1:] = [str(rank), "2", os.read(read, 5).decode(), "run"]
        exec(program, {"__name__": "__main__"})
        sys.exit()
listener = socket.create_server(("10.77.0.1", 0))
server = KeyValueServer(listener)
for _ in range(2):
    os.write(write, f"{listener.getsockname()[1]:05}".encode())
sys.exit(any([os.wait()[1] for _ in range(2)]))
"""
