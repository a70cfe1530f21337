"""How a job stands, for processes that only see its folder: `job.json`, which the anchor writes every two seconds.

The anchor replaces the file as a whole, so that a reader sees one state or the next one. A state that does not change
any more, and is not the last one, is that of an anchor that was killed: `AnchorWatch`.
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, TextIO, TypeAlias

from chicle_elastic.errors import DataError, UsageError

FILE_NAME = "job.json"
LOCK_NAME = ".anchor.lock"
VERSION = 1
BEAT_S = 2.0
SILENT_S = 60.0
"""An anchor that has written nothing for so long is taken for dead; a busy shared folder is slower than a process."""

Phase: TypeAlias = Literal["preparing", "running", "succeeded", "failed", "cancelled"]
ENDS = ("succeeded", "failed", "cancelled")


def replace_json(path: Path, value: object) -> None:
    """Write a file whole: a reader sees what was there, or this value."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value))
    os.replace(draft, path)


@contextlib.contextmanager
def kept_folder(job: Path) -> Iterator[None]:
    """Make the folder of a job, and keep other anchors out of it: as long as this process, at most. Raises UsageError
    when another anchor has the folder, OSError when it cannot be made."""
    job.mkdir(parents=True, exist_ok=True)
    path = job / LOCK_NAME
    with _locked(path) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()} of {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


def _locked(path: Path) -> TextIO:
    while True:
        file = open(path, "a+")  # noqa: SIM115 - it outlives this call, with its lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            with file:
                raise UsageError(
                    f"the folder {path.parent} is that of another run, which goes on ({file.read()}); give this one "
                    "another --out, or end that one first; where its host is gone and a shared folder still keeps it, "
                    f"remove {path}"
                ) from None
        except OSError:
            return file  # a shared folder without locks: nobody is kept out
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # the run that had it has removed it since


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member in a job's state; fields as of `serving.Member`."""

    name: str
    host: str
    is_noticed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """How a job stands."""

    phase: Phase  # what it is at
    reason: str = ""  # why it ended, in words; "" before
    run: str = ""  # folder in which anchor and members meet; "" where there is none
    host: str = ""  # of the anchor
    wanted: int = 0  # members that are wanted; 0 while no process has asked for any
    members: tuple[MemberState, ...] = ()  # those that have a place now
    beat: int = 0  # counted up with every write
    time_s: float = 0.0  # of the write, in seconds since 1970 by the clock of `host`

    @property
    def is_over(self) -> bool:
        """Whether this is the last state."""
        return self.phase in ENDS

    @classmethod
    def read(cls, job: Path) -> "JobState | None":
        """The state of the job with this folder; None where no anchor has begun there. Raises DataError when the file
        is damaged, or of another version."""
        path = job / FILE_NAME
        try:
            fields = json.loads(path.read_text())
            version = fields.pop("version")
            if version != VERSION:
                raise DataError(f"{path} is of version {version}, and this Chicle reads {VERSION}; upgrade it")
            members = tuple(MemberState(**member) for member in fields.pop("members"))
            return cls(**fields, members=members)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path} does not say how a job stands ({error}); is this the folder of a job?") from error

    def write(self, job: Path) -> None:
        """Replace the file."""
        replace_json(job / FILE_NAME, {"version": VERSION, **asdict(self)})


@dataclass(slots=True)
class StateWriter:
    """Writes the state of a job, as the anchor sees it. A folder that is full for a while costs news, and not the job.
    Raises OSError when the first one cannot be written.

    Args:
        state: The first one, which is written at once.
    """

    job: Path
    state: JobState
    _written_s: float = field(default=0.0, init=False)
    _has_begun: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._write()
        self._has_begun = True

    def change(self, phase: Phase, reason: str = "") -> None:
        """Go on to another phase; the first end holds."""
        if not self.state.is_over:
            self.state = replace(self.state, phase=phase, reason=reason)
            self._write()

    def tell(self, members: Iterable[MemberState], wanted: int) -> None:
        """Tell who is there; written at once where it is new, and every `BEAT_S` in any case."""
        now = replace(self.state, members=tuple(members), wanted=wanted)
        if now != self.state or time.monotonic() - self._written_s >= BEAT_S:
            self.state = now
            self._write()

    def _write(self) -> None:
        self._written_s = time.monotonic()
        self.state = replace(self.state, beat=self.state.beat + 1, time_s=time.time())
        try:
            self.state.write(self.job)
        except OSError as error:
            if not self._has_begun:
                raise
            print(f"anchor: {self.job / FILE_NAME} cannot be written ({error}); the job goes on", flush=True)


@dataclass(slots=True)
class AnchorWatch:
    """Whether the anchor of a job still writes, judged by this process's clock alone."""

    _beat: int = field(default=-1, init=False)
    _heard_s: float = field(default_factory=time.monotonic, init=False)

    def is_silent(self, state: JobState) -> bool:
        """Whether a job that runs has not changed its state for `SILENT_S`; one that prepares data need not."""
        if state.beat != self._beat:
            self._beat, self._heard_s = state.beat, time.monotonic()
        return state.phase == "running" and time.monotonic() - self._heard_s > SILENT_S


def state_of(job: Path) -> JobState:
    """The state of a job whose anchor has begun. Raises UsageError when none has begun there, DataError as
    `JobState.read` does."""
    state = JobState.read(job)
    if state is None:
        raise UsageError(
            f"{job} is no folder of a job: it has no {FILE_NAME}, which the anchor writes as soon as it begins; give "
            "the --out of the job"
        )
    return state


def run_of(job: Path) -> Path:
    """The folder of a job's run, in which place and secret are. Raises UsageError when there is none, because the job
    is over or no anchor has begun, DataError as `JobState.read` does."""
    state = state_of(job)
    if state.is_over:
        raise UsageError(f"the job of {job} is over ({state.phase}: {state.reason})")
    if not state.run and state.phase == "running":
        raise UsageError(f"the job of {job} runs on Kubernetes: patch spec.parallelism of its burst Job by kubectl")
    if not state.run:
        raise UsageError(f"the job of {job} prepares its data and has no members yet; try again in a moment")
    return Path(state.run)
