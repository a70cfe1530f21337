"""Waits for the end of a job of which this process sees the folder only."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from chicle_elastic import waits
from chicle_elastic.errors import PeerLostError
from chicle_elastic.monitoring.records import IterationRecord, Transition
from torchx_components.job_progress import JobProgress
from torchx_components.job_state import SILENT_S, AnchorWatch, JobState

TURN_S = 0.25
ASK_S = 5.0  # how often the scheduler is asked for a job whose anchor has not begun
FEW_S = 15.0  # after so long without a member the user is told what is waited for


def wait_for_end(
    job: Path,
    *,
    on_iteration: Callable[[IterationRecord], object] | None = None,
    on_transition: Callable[[Transition], object] | None = None,
    ask: Callable[[], str] | None = None,
) -> JobState:
    """Follow a job until it is over. Returns the last state. Raises PeerLostError when the anchor was killed, or the
    job was cancelled before its anchor began, DataError when the state is damaged.

    Args:
        ask: Says how the job stands with its scheduler, for the line that the user sees; raises PeerLostError where the
            scheduler has no such job, or has ended it.
    """
    progress = JobProgress(job, on_iteration=on_iteration, on_transition=on_transition)
    watch, told = AnchorWatch(), ""
    asked_s = few_since_s = time.monotonic()
    while True:
        state = JobState.read(job)
        with contextlib.suppress(OSError):  # a shared folder that hiccups; it is read again
            progress.read(is_over=state is not None and state.is_over)
        now_s = time.monotonic()
        if state is not None:
            if state.is_over:
                return state
            if watch.is_silent(state):
                raise PeerLostError(
                    f"the anchor of {job} on {state.host} has written nothing for {SILENT_S:g} s: it was killed, or "
                    f"the shared folder hangs; look at what it has printed, and submit the job again (with a "
                    "checkpoint it goes on from there)"
                )
            few_since_s = now_s if state.members else few_since_s
        is_pending = state is None or state.phase == "preparing"
        if is_pending and ask is not None and now_s - asked_s >= ASK_S:
            asked_s = now_s
            try:
                told = _tell_once(told, f"{job}: {ask()}")
            except PeerLostError:
                if JobState.read(job) == state:  # else it has gone on, or ended, in between
                    raise
        elif state is not None and now_s - few_since_s >= FEW_S:
            what = "prepares the data" if state.phase == "preparing" else "waits for its first member"
            told = _tell_once(told, f"{job}: the anchor on {state.host} {what}")
        time.sleep(TURN_S)


def _tell_once(told: str, text: str) -> str:
    if text != told:
        waits.tell(text)
    return text
