"""Shared memory keeps the contract of transports, and does not believe a descriptor."""

import os
import socket

import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports import wire
from chicle_elastic.transports.base import Region
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.handshake import prove_as_listener
from chicle_elastic.transports.shm import ShmTransport
from chicle_elastic.transports.wire import Kind
from tests.harness.impostor import Impostor, wait_for_the_end
from tests.harness.transport_contract import TransportContract
from tests.timeouts import timeout_s


class TestShm(TransportContract):
    """The contract, between transports of one host."""

    uri = "unix:@chicle-test-{test}-{number}"
    transport = ShmTransport
    timeout_s = timeout_s(10)

    def fetch_from(self, reader, secret, address, frame, fds):
        """Fetch 4096 bytes from a peer that answers a request for a descriptor in this way."""

        def script(sock: socket.socket) -> None:
            prove_as_listener(sock, secret, Deadline(self.timeout_s), purpose="shm", name="owner", peer="reader")
            sock.recv(1 << 16)
            if fds:
                socket.send_fds(sock, [frame], fds)
            else:
                sock.sendall(frame)
            wait_for_the_end(sock)

        with Impostor(address, script) as impostor:
            return self.fetch(reader, impostor.address, Region(0, 0, 4096))

    def test_a_file_that_is_shorter_than_promised_is_no_crash(self, secret, reader, address):
        """Reading a map of it would be a SIGBUS."""
        fd = os.memfd_create("short")
        try:
            os.ftruncate(fd, 1000)
            with pytest.raises(ProtocolError, match="said that arena 0 has 8192 bytes, but it ends at 1000"):
                self.fetch_from(reader, secret, address(), wire.pack_json(Kind.DESCRIPTOR, 8192), [fd])
        finally:
            os.close(fd)

    def test_a_descriptor_that_cannot_be_read_is_refused(self, secret, reader, address):
        """A pipe is no memory."""
        ends = os.pipe()
        try:
            with pytest.raises(ProtocolError, match=r"a descriptor that cannot be read \(Illegal seek\)"):
                self.fetch_from(reader, secret, address(), wire.pack_json(Kind.DESCRIPTOR, 8192), [ends[0]])
        finally:
            for fd in ends:
                os.close(fd)

    @pytest.mark.parametrize("size", [8192, "many"])
    def test_an_answer_without_a_descriptor_is_refused(self, secret, reader, address, size):
        """And one without a size; a descriptor that came is closed."""
        ends = os.pipe()
        try:
            fds = [] if size == 8192 else [ends[0]]
            with pytest.raises(ProtocolError, match="answered without a descriptor, or without its size"):
                self.fetch_from(reader, secret, address(), wire.pack_json(Kind.DESCRIPTOR, size), fds)
        finally:
            for fd in ends:
                os.close(fd)
