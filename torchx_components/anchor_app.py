"""The anchor of a job as an application of TorchX, for components and for `TorchXRuntime`."""

import shlex
from typing import Any

import torchx.specs as specs

from chicle_elastic.chunks.places import absolute_place
from torchx_components.node import check_task, parse_nodes

ANCHOR = "torchx_components.anchor"


def component_of(given: dict[str, Any], task: list[str]) -> specs.AppDef:
    """The job of a component."""
    check_task(task, str(given["train"]), str(given["out"]))
    return anchor_of(given, shlex.split(str(given["member_options"])), task)


def anchor_of(given: dict[str, Any], member_options: list[str], task: list[str]) -> specs.AppDef:
    """The job of an anchor.

    Args:
        given: What the components take, by name: train (without for a script), out, j, checkpoint, resume, grace,
            begin, env, name, image, python, cpu, memMB, gpu.
    """
    least, most = parse_nodes(str(given["j"]))
    arguments = [ANCHOR, "-j", f"{least}:{most}"]
    arguments += ["--train", absolute_place(str(given["train"]))] if given.get("train") else []
    arguments += ["--out", absolute_place(str(given["out"])), "--grace", str(given["grace"])]
    arguments += ["--python", str(given["python"])]
    arguments += ["--begin", str(given["begin"])] if given["begin"] else []
    arguments += ["--checkpoint", str(given["checkpoint"])] if given["checkpoint"] else []
    arguments += ["--resume"] if given["resume"] else []
    arguments += [f"--sbatch=--cpus-per-task={given['cpu']}", f"--sbatch=--mem={given['memMB']}"]
    arguments += [f"--sbatch=--gpus-per-node={given['gpu']}"] if given["gpu"] else []
    arguments += member_options  # later ones win
    return specs.AppDef(name=str(given["name"]), roles=[role_of("anchor", [*arguments, *task], given)])


def role_of(role_name: str, args: list[str], given: dict[str, Any]) -> specs.Role:
    """One replica of a module of Python's."""

    def number(name: str) -> int:
        return int(str(given[name]))

    return specs.Role(
        name=role_name,
        image=str(given["image"]),
        entrypoint=str(given["python"]),
        args=["-m", *args],
        env=dict(given["env"] or {}),
        num_replicas=1,
        resource=specs.Resource(cpu=number("cpu"), gpu=number("gpu"), memMB=number("memMB")),
        retry_policy=specs.RetryPolicy.REPLICA,
    )
