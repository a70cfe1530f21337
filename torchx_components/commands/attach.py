"""Show the progress of a job until it is over; returns its exit code.

The job goes on when this command is interrupted. In a notebook, TorchXRuntime.attach(JOB) does the same and returns the
fitted estimator.
"""

import argparse
import sys
from pathlib import Path

from torchx_components.job_state import state_of
from torchx_components.job_wait import wait_for_end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle attach` takes."""
    parser.add_argument("job", type=Path, help="folder of the job, its --out")


def run(arguments: argparse.Namespace) -> int:
    """Follow the job; returns 0 where it succeeded, else 1."""
    state_of(arguments.job)  # says it where this is no job
    state = wait_for_end(
        arguments.job,
        on_iteration=lambda record: print(
            f"iteration {record.iteration}, {record.num_tasks} tasks, {record.time_s:.1f} s: "
            + ", ".join(f"{name} {figure:.4g}" for name, figure in record.figures.items()),
            flush=True,
        ),
        on_transition=lambda transition: print(transition.words(), flush=True),
    )
    has_succeeded = state.phase == "succeeded"
    print(f"{arguments.job}: {state.phase}: {state.reason}", file=sys.stdout if has_succeeded else sys.stderr)
    return int(not has_succeeded)
