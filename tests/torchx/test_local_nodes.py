"""Nodes that are processes of this host, without a job."""

import sys

import pytest

from chicle_elastic.errors import PeerLostError
from tests.timeouts import comes
from torchx_components import local_nodes
from torchx_components.local_nodes import LocalNodes


def failing(*, has_joined: bool) -> LocalNodes:
    """A member that fails, and another one in its place."""
    command = [sys.executable, "-c", "raise SystemExit(1)"]
    return LocalNodes(lambda _: command, begin=1, most=1, grace_s=5.0, has_joined=lambda _: has_joined)


def test_members_that_never_join_end_the_run_however_long_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine at load a script takes long to fail; those that have joined are followed by others."""
    monkeypatch.setattr(local_nodes, "WELL_S", 0.0)
    strangers, members = failing(has_joined=False), failing(has_joined=True)

    def comes_to(nodes: LocalNodes, name: str) -> bool:
        nodes.poll(0.0)
        return name in nodes.members

    assert comes(lambda: comes_to(members, "node-5"))
    with pytest.raises(PeerLostError, match="before they joined"):
        comes(lambda: comes_to(strangers, "node-5"))
    strangers.close()
    members.close()
