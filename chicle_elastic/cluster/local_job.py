"""A job as JSON: what the driver of a local cluster tells the tasks, and how they make the job from it again.

Nothing is pickled, so a trainer (or a policy) travels as the name of what makes it and the settings to make it with:

* an instance of a dataclass that can be imported: its class and its fields (JSON values; tuples stay tuples),
* anything else has a method `recipe()` that returns ("module:function", {settings}).

A trainer may need code that no import finds; it goes along with the data (`own_code`).
"""

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.cluster import own_code
from chicle_elastic.cluster.local_data import (
    StagedFile,
    describe_array,
    describe_source,
    map_file,
    open_array,
    open_source,
)
from chicle_elastic.errors import UsageError
from chicle_elastic.monitoring.records import IterationRecord, Transition
from chicle_elastic.policies.base import Policy
from chicle_elastic.runtime.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.job import Job
from chicle_elastic.solvers.base import Trainer


def stage(job: Job, file: StagedFile) -> dict[str, Any]:
    """Write the data of a job to `file`, and say the rest in JSON.

    Raises:
        UsageError: The trainer cannot be made again in another process.
        CapacityError: There is no memory for the data.
    """
    trainer, own_module, own_text = own_code.portable(job.trainer)
    described: dict[str, Any] = {
        "trainer": describe(trainer, "trainer"),
        "policies": None if job.policies is None else [describe(policy, "policy") for policy in job.policies],
        "source": describe_source(job.source, file),
        "max_iterations": job.max_iterations,
        "seed": job.seed,
        "keep_state": job.keep_state,
        "checkpoint": None if job.checkpoint is None else asdict(job.checkpoint),
        "tells": job.on_iteration is not None or job.tell is not None,
        "asks": job.on_model is not None,
        "sys_path": sys.path,
        "folder": os.getcwd(),
    }
    if job.initial_state is not None:
        described["initial_state"] = describe_array(job.initial_state, file)
    if own_module:
        content = np.frombuffer(own_text.encode(), dtype=np.uint8)
        described["own_code"] = {"module": own_module, "text": describe_array(content, file)}
    if job.initial_model is not None:
        described["initial_model"] = describe_array(job.initial_model, file)
    file.seal()
    return described


def build(
    described: Mapping[str, Any],
    fd: int,
    *,
    tell: Callable[[IterationRecord], None],
    ask: Callable[[IterationRecord, Array], bool],
    on_transition: Callable[[Transition], None],
) -> Job:
    """The job again, in a task.

    Args:
        described: By `stage`.
        fd: Of the file; it may be closed afterwards.
        tell: Takes records, if the driver wants to be told.
        ask: Asks whether the job ends, if the driver wants to be asked.
        on_transition: Takes changes of the membership.

    Raises:
        UsageError: The trainer cannot be made here.
        DataError: The chunk folder is not there any more, or damaged.
    """
    memory = map_file(fd)
    initial, checkpoint = described.get("initial_state"), described["checkpoint"]
    model = described.get("initial_model")
    policies = described["policies"]
    if "own_code" in described:
        code = described["own_code"]
        own_code.load(code["module"], open_array(code["text"], memory).tobytes().decode())
    return Job(
        trainer=make(described["trainer"], Trainer),
        policies=None if policies is None else [make(policy, Policy) for policy in policies],
        source=open_source(described["source"], memory),
        max_iterations=described["max_iterations"],
        seed=described["seed"],
        initial_state=None if initial is None else open_array(initial, memory),
        initial_model=None if model is None else open_array(model, memory),
        keep_state=described["keep_state"],
        checkpoint=None if checkpoint is None else CheckpointSettings(**checkpoint),
        tell=tell if described["tells"] else None,
        on_model=ask if described["asks"] else None,
        on_transition=on_transition,
    )


def describe(part: Any, what: str) -> dict[str, Any]:
    """Say in JSON how a part of a job is made.

    Args:
        part: A trainer or a policy.
        what: Which of them, for messages.

    Raises:
        UsageError: It is neither an importable dataclass of JSON values nor has a recipe.
    """
    kind = type(part)
    recipe = getattr(part, "recipe", None)
    if recipe is not None:
        make, settings = recipe()
        described = {"make": make, "settings": settings}
        _require_json(kind, described)
        return described
    if not is_dataclass(part):
        raise UsageError(
            f"the {what} {kind.__qualname__} cannot be made again in the tasks of a cluster; make it a dataclass, or "
            'give it a method recipe() that returns ("module:function", {settings})'
        )
    settings = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
    described = {"make": f"{kind.__module__}:{kind.__qualname__}", "settings": settings}
    _require_json(kind, described)
    if kind.__module__ == "__main__" or _find(described["make"]) is not kind:
        raise UsageError(
            f"the {what} {described['make']} cannot be imported by the tasks of a cluster; define it at the top of a "
            "module of yours, not in a notebook, a function or the script that is run"
        )
    return described


def make(described: Mapping[str, Any], kind: Any) -> Any:
    """A part of a job again, by what `describe` has said.

    Raises:
        UsageError: What makes it cannot be imported, or makes something else than a `kind`.
    """
    settings = {name: _with_tuples(value) for name, value in described["settings"].items()}
    part = _find(described["make"])(**settings)
    if not isinstance(part, kind):
        raise UsageError(f"{described['make']} made {type(part).__qualname__}, which is no {kind.__name__}")
    return part


def _find(name: str) -> Any:
    """What "module:qualified.name" names.

    Raises:
        UsageError: There is none.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{name!r} cannot be imported by the tasks of a cluster ({error}); it has to stand at the top of a module "
            "that the driver can import by that name"
        ) from error
    return found


def _require_json(kind: type, described: Mapping[str, Any]) -> None:
    for name, value in described["settings"].items():
        if not _is_json(value):
            raise UsageError(
                f"{kind.__qualname__} has {name}={value!r}, which is no JSON value (number, string, bool, "
                "None, or tuple, list or dict of those) and cannot travel to the tasks of a cluster"
            )


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and not math.isnan(value))


def _with_tuples(value: Any) -> Any:
    """JSON has no tuples; dataclasses that compare and hash have no lists."""
    if isinstance(value, list):
        return tuple(map(_with_tuples, value))
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    return value
