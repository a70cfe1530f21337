"""What torchrun's options say about the task of a node, in plain values for an agent that has no torch.

torchrun's parser has read them, and torch's own checks are done here. So this runs where torch is: in the child process
that parses the command line (`launcher.parse_apart`).
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

from chicle_elastic.errors import UsageError
from chicle_elastic.versions import warn_if_untried

RUN_PATH = (
    "import sys\n"
    "from torch.distributed.elastic.multiprocessing.errors import record\n"
    "from torch.distributed.run import run_script_path\n"
    "record(run_script_path)(*sys.argv[1:])"
)
"""Runs a script as `--run-path` wants it: by runpy, and its error goes into the error file."""
AFFINITY = "import os; print(','.join(map(str, sorted(os.sched_getaffinity(0)))))"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Says what the task runs, and where its output goes."""

    command: tuple[str, ...]
    title: str  # names the task where it fails: the script or module
    role: str = "default"
    # where to make the folder of its log files, "" for a temporary one; None for no files
    log_dir: str | None = None
    redirects: int = 0  # streams that go into files: 1 stdout, 2 stderr, 3 both (torch's `Std`)
    tee: int = 0  # streams that go into files and onto the console
    shown_ranks: tuple[int, ...] = ()  # local ranks that the console shows; none for all
    stdout_filters: tuple[str, ...] = ()  # lines of `tee` with one of these texts go into a further file as well
    stderr_filters: tuple[str, ...] = ()
    prefix: str = ""  # of its lines on the console, with `tee`
    logs_specs: str | None = None  # plug-in that says where output goes; None for torchrun's own rules


def from_torchrun(arguments: argparse.Namespace) -> TaskOptions:
    """Read the options of the task, with torch's own checks. Raises UsageError when torch refuses one."""
    import torch
    from torch.distributed.elastic.multiprocessing import Std, to_map
    from torch.distributed.run import config_from_args

    warn_if_untried("torch", torch.__version__)
    has_files = not arguments.redirects == arguments.tee == "0" or arguments.logs_specs is not None
    has_files |= bool(arguments.duplicate_stdout_filters or arguments.duplicate_stderr_filters)
    without_files = argparse.Namespace(**{**vars(arguments), "log_dir": os.devnull, "logs_specs": None})
    try:
        config, entrypoint, words = config_from_args(without_files)
        redirects, tee = (int(to_map(Std.from_str(text), 1)[0]) for text in (arguments.redirects, arguments.tee))
        bound = () if config.numa_options is None else bound_command(config.numa_options)
    except (AssertionError, RuntimeError, ValueError) as error:
        raise UsageError(f"torchrun refuses its options: {error}") from error
    words = [str(word).replace("${local_rank}", "0") for word in words]
    program = (entrypoint,) if isinstance(entrypoint, str) else (sys.executable, "-u", "-c", RUN_PATH)
    template = config.log_line_prefix_template or "[${role_name}${local_rank}]:"
    filters = arguments.local_ranks_filter
    return TaskOptions(
        command=(*bound, *program, *words),
        title=next(word for word in (*words, *program) if not word.startswith("-"))
        if program[0] == sys.executable
        else program[0],
        role=config.role,
        log_dir=(arguments.log_dir or "") if has_files else None,
        redirects=redirects,
        tee=tee,
        shown_ranks=tuple(map(int, filters.split(","))) if filters else (),
        stdout_filters=tuple(config.duplicate_stdout_filters or ()),
        stderr_filters=tuple(config.duplicate_stderr_filters or ()),
        prefix=Template(template).safe_substitute(role_name=config.role, local_rank=0, rank=-1),
        logs_specs=arguments.logs_specs,
    )


def bound_command(numa_options: Any) -> Sequence[str]:
    """Return the words before a command that bind it to the processors of its GPU: torch binds a process that tells
    which ones these are. Without options these are the processors of this process."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes

    with tempfile.TemporaryDirectory() as folder:
        told = start_processes(
            name="numa",
            entrypoint=sys.executable,
            args={0: ("-c", AFFINITY)},
            envs={0: {}},
            logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=Std.OUT),
            numa_options=numa_options,
        )
        ended = told.wait()
        assert ended is not None
        with open(ended.stdouts[0], encoding="ascii") as file:
            return ("numactl", f"--physcpubind={file.read().strip()}")
