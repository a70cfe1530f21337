"""Nodes that are processes of this host, for TorchX's local scheduler and to try a job before it goes to a cluster.

A member that has left is followed by another one as long as so many are wanted; a notice is SIGTERM. Members are
children of the anchor in a session of their own, and the kernel ends them when the anchor is killed.
"""

import functools
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from chicle_elastic.cluster.local.forking import die_with
from chicle_elastic.errors import PeerLostError
from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managers import Assigned, Said
from torchx_components.serving import Member

LEAST_FAILED = 2
"""At least so many members one after the other may fail, and as many as are wanted; one more ends the run."""
WELL_S = 20.0  # a member that has joined, and lived for so long, was well


class LocalNodes:
    """`Members`; see the top of the module.

    Args:
        begin: Members to begin with, >= 1.
        has_joined: Says whether a member has ever joined the job; else it was never well.

    Attributes:
        members: Processes that run, by name; replaced as a whole.
        waiting: As of `Members`.
    """

    waiting = "their outputs say why"

    def __init__(
        self,
        command: Callable[[NodeId], Sequence[str]],
        *,
        begin: int,
        most: int,
        grace_s: float,
        has_joined: Callable[[NodeId], bool],
    ) -> None:
        self.members: Mapping[NodeId, Member] = {}
        self._command, self._most, self._grace_s, self._has_joined = command, most, grace_s, has_joined
        self._wanted = min(begin, most)
        self._processes: dict[NodeId, subprocess.Popen[bytes]] = {}
        self._number = self._num_failed = 0
        self._is_ending = False
        self._anchor = os.getpid()

    def begin(self) -> None:
        """As of `Members`; the first processes start with the first `poll`, which says so."""

    def request(self, total: int, reason: str) -> None:
        """As of `ResourceManager`; more than `most` are not started."""
        self._wanted = max(1, min(total, self._most))

    def release(self, node: NodeId) -> None:
        """As of `ResourceManager`: end the process, if there is one."""
        process = self._processes.get(node)
        if process is not None:
            process.terminate()

    def notice(self, node: NodeId) -> None:
        """SIGTERM; the member hands its chunks over and leaves."""
        member, process = self.members.get(node), self._processes.get(node)
        if member is not None and process is not None:
            process.terminate()
            self.members = {**self.members, node: replace(member, is_noticed=True)}

    def stop_starting(self) -> None:
        """As of `Members`; processes that have ended are still looked at."""
        self._is_ending = True

    def poll(self, now_s: float) -> Sequence[Said]:
        """As of `ResourceManager`. Raises PeerLostError when members fail as soon as they begin."""
        self._look()
        return self._start_missing()

    def close(self) -> None:
        """Notice for those that still run, and SIGKILL after their time."""
        self._is_ending = True
        for process in self._processes.values():
            process.terminate()
        end_s = time.monotonic() + self._grace_s
        for process in self._processes.values():
            try:
                process.wait(max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes, self.members = {}, {}

    def _look(self) -> None:
        ended = {name: process.returncode for name, process in self._processes.items() if process.poll() is not None}
        now_s = time.monotonic()
        for name, code in ended.items():
            has_lived = now_s - self.members[name].since_s >= WELL_S and self._has_joined(name)
            is_well = code == 0 or self.members[name].is_noticed or has_lived
            self._num_failed = 0 if is_well else self._num_failed + 1
            del self._processes[name]
        self.members = {name: member for name, member in self.members.items() if name not in ended}
        if self._num_failed > max(LEAST_FAILED, self._wanted) and not self._is_ending:
            raise PeerLostError(
                f"{self._num_failed} members one after the other have failed before they joined or in {WELL_S:g} s; "
                "their outputs say why"
            )

    def _start_missing(self) -> list[Said]:
        # A member that has its notice makes room at once, as its place is nearly free.
        num_staying = sum(not member.is_noticed for member in self.members.values())
        started: list[Said] = []
        while not self._is_ending and num_staying + len(started) < self._wanted:
            name = NodeId(f"node-{self._number}")
            self._number += 1
            self._processes[name] = subprocess.Popen(
                self._command(name),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=functools.partial(die_with, self._anchor),
            )
            member = Member(name, f"process {self._processes[name].pid}", time.monotonic())
            self.members = {**self.members, name: member}
            started.append(Assigned(name))
        return started
