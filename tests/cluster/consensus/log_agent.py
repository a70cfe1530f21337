"""An agent of the virtual network."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chicle_elastic.cluster.agent.pipelining import Pipelining
from chicle_elastic.cluster.consensus.entries import Entry
from chicle_elastic.cluster.consensus.replica import Replica
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from tests.cluster.consensus.log_net import Net


class Agent:
    """One life of a node: its replica, what its memory holds, and whether its task votes.

    `recording` is the whole log as this agent knows it; what it did not fold, because it began with a state, it has
    from the agent that sent the state.
    """

    def __init__(self, net: "Net", name: str, number: int) -> None:
        self.net = net
        self.node = NodeId(name)
        self.life = f"{name}#{number}"
        self.replica = Replica(self.node, self.life, Scheduler(net.settings), kept=net.kept)
        self.recording: list[Entry] = []
        self.is_alive = True
        self.is_gone = False
        self.is_noticed = False
        self.is_finished = False
        self.is_expelled = False
        self.has_announced = False
        self.num_waits = 0
        self.paused_until = 0.0
        self.waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.is_waking = False
        self.wants_vote = False
        self.pace = Pipelining()
        self.unheard: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.is_looking = False
        self.task_life = 0
        self.last_broken_round = 0
        self.is_task_alive = True
        self.chunks: set[ChunkId] = set()
        self.merged: set[tuple[int, int]] = set()
