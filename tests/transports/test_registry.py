"""What is registered can be read by number, and by nobody written."""

import os
import sys

import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.base import Region
from chicle_elastic.transports.registry import Registry

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="arenas are for Linux")


@pytest.fixture
def registry():
    """One arena of two slots, filled with sevens."""
    registry = Registry()
    with Arena.create(2, slot_bytes=4096) as arena:
        arena.view(0)[:] = arena.view(1)[:] = bytes([7]) * 4096
        registry.add(arena)
    yield registry
    registry.close()


def test_peers_get_a_descriptor_that_they_cannot_write_to(registry):
    """Neither directly nor through a map; nor does a task that is started inherit it."""
    fd, size_bytes = registry.descriptor(0)
    assert size_bytes == 8192
    assert os.pread(fd, 2, 0) == bytes([7, 7])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(fd, b"x", 0)
    assert not os.get_inheritable(fd)


def test_a_region_is_read_only(registry):
    """Transports send, and change nothing."""
    with registry.view(Region(0, 4095, 2)) as view:
        assert bytes(view) == bytes([7, 7])
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1


def test_closing_while_bytes_are_sent_keeps_them_until_then(registry):
    """A thread that is still sending reads what it began with; the memory goes with its view."""
    view = registry.view(Region(0, 0, 8192))
    registry.close()
    assert bytes(view) == bytes([7]) * 8192
    view.release()
    with pytest.raises(ProtocolError, match="no arena 0 here, 0 are registered"):
        registry.view(Region(0, 0, 1))
