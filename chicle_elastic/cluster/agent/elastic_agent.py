"""The agent of a node under torch's launcher, which starts the task and calls the rendezvous."""

from collections.abc import Mapping
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec

from chicle_elastic.cluster.agent.node_agent import NodeAgent
from chicle_elastic.cluster.agent.torch_private import SingleTaskAgent
from chicle_elastic.cluster.options import NodeOptions
from chicle_elastic.cluster.rendezvous.handler import ChicleRendezvousHandler
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId


class ElasticAgent(SingleTaskAgent, NodeAgent):
    """See the top of the module. Raises UsageError when the rendezvous is not Chicle's."""

    def __init__(self, spec: WorkerSpec, *args: Any, options: NodeOptions, **kwargs: Any) -> None:
        SingleTaskAgent.__init__(self, spec, *args, **kwargs)
        handler = spec.rdzv_handler
        if not isinstance(handler, ChicleRendezvousHandler):
            raise UsageError(
                f"the agent needs the rendezvous 'chicle' but was given {handler.get_backend()!r}; start it with "
                "python -m chicle_elastic.launch"
            )
        handler.await_calls()  # an agent that fails before its first round must not close the job for all others
        self._handler = handler
        command = [str(word) for word in spec.args]
        NodeAgent.__init__(self, self, entry=handler.entry, options=options, command=command)

    def supervise(self) -> RunResult:
        """Run the node until it is finished, has left or has failed. Raises ChicleError when the node cannot take part
        in the job."""
        ended: Any = self.run_node()
        return self.succeeded() if ended is None else self.failed(ended)

    def task_environment(self) -> Mapping[str, str]:
        """The address of the agent for its task, and the maximum number of nodes; no secret of the job."""
        environment = {"CHICLE_CONTROL": self._control, "CHICLE_MAX_NODES": str(self._entry.max_nodes)}
        return environment | {"CHICLE_SECRET": ""} if self._options.secret_file is None else environment

    def call_round(self, round: int, members: tuple[NodeId, ...]) -> None:
        """Take part in a round of torch's rendezvous."""
        self._handler.expect(round=round, members=members)
        self.rendezvous()
