"""Show how a job stands: its phase, its members and where they run, its last iteration, and why it ended.

With JOB it reads the folder of the job and contacts no process. With --peer it asks an agent of each job that the
rendezvous store there serves, from any host that has the secret. Exit code 0, also for a job that failed; 1 where no
agent answers, 2 where there is no such job.
"""

import argparse
import time
from pathlib import Path

from chicle_elastic.cli.job_agents import add_peer_arguments
from chicle_elastic.cli.job_status import job_lines
from chicle_elastic.errors import UsageError
from torchx_components.job_progress import JobProgress
from torchx_components.job_state import SILENT_S, JobState, state_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle status` takes."""
    parser.add_argument("job", type=Path, nargs="?", help="folder of the job, its --out")
    add_peer_arguments(parser, "rendezvous store of the job, where there is no folder")


def run(arguments: argparse.Namespace) -> int:
    """Print the state; returns the exit code. Raises UsageError when there is neither a folder nor --peer, or both."""
    if (arguments.job is None) == (arguments.peer is None):
        raise UsageError("chicle status takes the folder of a job, or --peer HOST[:PORT] of its rendezvous store")
    if arguments.peer is not None:
        lines = job_lines(arguments.peer, secret_file=arguments.secret_file, tls=arguments.tls)
    else:
        lines = iter(lines_of(arguments.job, state_of(arguments.job), now_s=time.time()))
    for line in lines:
        print(line)
    return 0


def lines_of(job: Path, state: JobState, *, now_s: float) -> list[str]:
    """The state in words. `now_s`: seconds since 1970, for the age of the state."""
    reason = f": {state.reason}" if state.reason else ""
    lines = [f"{job}: {state.phase}{reason}"]
    progress = JobProgress(job)
    progress.read()
    if progress.last is not None:
        figures = ", ".join(f"{name} {figure:.4g}" for name, figure in progress.last.figures.items())
        lines.append(f"  iteration {progress.last.iteration} after {progress.last.time_s:.1f} s: {figures}")
    if state.is_over:
        return lines
    lines.append(f"  members: {len(state.members)} of {state.wanted} that are wanted")
    lines += [
        f"    {member.name} on {member.host}{', has notice' if member.is_noticed else ''}" for member in state.members
    ]
    age_s = now_s - state.time_s
    if age_s > SILENT_S:
        lines.append(
            f"  the anchor on {state.host} has written nothing for {age_s:.0f} s: it was killed, or the clocks of the "
            "hosts differ; members that train go on to the end"
        )
    return lines
