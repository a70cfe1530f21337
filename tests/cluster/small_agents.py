"""The smallest agents that torch's launcher can run a task with, as a program of their own.

    python -m tests.cluster.small_agents OUTPUT [options of the launcher] SCRIPT

One task through three called rounds; what was seen in each is written to OUTPUT as JSON.
"""

import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed.launcher.api as launcher
from torch.distributed.elastic.agent.server.api import RunResult
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.run import config_from_args

from chicle_elastic.cluster.agent.torch_private import SingleTaskAgent
from chicle_elastic.cluster.launcher import agent_class
from chicle_elastic.cluster.options import AgentCommand, parse
from chicle_elastic.cluster.rendezvous import torchrun_plugin
from chicle_elastic.cluster.rendezvous.handler import ChicleRendezvousHandler


class KeepingAgent(SingleTaskAgent):
    """Keeps one task through several rounds."""

    def __init__(self, *args: Any, output: Path, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.output = output

    def task_environment(self) -> Mapping[str, str]:
        """Tells the task where to write."""
        return {"SMALL_AGENT_OUTPUT": str(self.output)}

    def supervise(self) -> RunResult:
        """One task, three rounds, then what the task made of it."""
        handler = self.get_worker_group().spec.rdzv_handler
        assert isinstance(handler, ChicleRendezvousHandler)
        pid = self.start_task()
        rounds = []
        for number in (1, 2, 3):
            handler.expect(round=number, members=(handler.node,))
            rounds.append((*self.rendezvous(), self.task_exit() is None, self.get_worker_group().workers[0].id))
        self.output.write_text(json.dumps({"pid": pid, "rounds": rounds}))
        while (ended := self.task_exit(1.0)) is None:
            pass
        return self.failed(ended) if ended.is_failed() else self.succeeded()


def main(output: str, *argv: str) -> None:
    """Run a node whose agent keeps its task."""
    command = parse(argv)
    assert isinstance(command, AgentCommand)
    config, entrypoint, arguments = config_from_args(command.torchrun)
    config.rdzv_configs |= {"secret_file": str(command.options.secret_file), "node": command.options.node}
    rendezvous_handler_registry.register("chicle", torchrun_plugin.create)
    with agent_class(functools.partial(KeepingAgent, output=Path(output))):
        launcher.elastic_launch(config, entrypoint)(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
