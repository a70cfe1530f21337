"""Nodes from Slurm: one job array of single-node jobs, which grows and shrinks by the number that may run at once.

    begin       sbatch --array=0-N%K --requeue --signal=B:USR1@S    K tasks run, the others wait
    request     scontrol update ArrayTaskThrottle=K      more start; fewer: none starts in place of one that ends
    revoked     a node is being drained, which Slurm tells no job: scancel --batch --signal=USR1 gives notice
    release     scancel ID
    time is up  another array takes over, shortly before members get the notice of their time limit
    the end     scancel ARRAY

Slurm ends a member by itself when it is cancelled, preempted or out of time; SIGTERM or SIGUSR1 is the notice then, and
the next task of the array takes its place as soon as there is a node. A preempted one is requeued and comes back by
another name. Members that began together have their time limit together; so others are asked for a little earlier, to
whom they hand their chunks. If all tasks of an array were used up, another array is submitted. Nothing here needs
slurmdbd.

A thread of its own talks to Slurm, since its programs may take seconds; the methods of `SlurmNodes` never wait.
"""

import math
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chicle_elastic.errors import PeerLostError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managers import Revoked
from chicle_elastic.settings import environment_of_jobs
from torchx_components.polled_members import PolledMembers
from torchx_components.serving import Member

DRAIN_S = 15.0  # how often to look for nodes that are being drained
COMMAND_S = 60.0
SIGNAL_S = 3.0
TASKS_PER_MEMBER, MOST_TASKS = 10, 1000
"""Tasks of an array: each is one stay of a member, unless it is requeued. Slurm's own limit is 1,001, if not set."""
SHORT_S = 20.0
SIGNAL_EARLY_S = 60.0  # Slurm gives the notice of a time limit up to a minute early, and takes a minute to end a member
REPLACE_S = 10.0  # members are replaced so long before the earliest notice of their time limit
LEAST_SHORT = 2
"""At least so many members one after the other may live for less, and as many as may run at once; one more ends the
run."""
GIVEN_BACK = {"REQUEUE", "CANCEL"}  # a suspended member would keep its memory, and the others would wait for it
DRAINING = re.compile(r"^(drng|drain|fail|down\*?$|maint)")
_QUEUE = "ArrayJobID:20,JobID:20,ArrayTaskID:20,StateCompact:8,RestartCnt:12,TimeLeft:20,PreemptTime:20,NodeList:100"
_QUEUE += ",Reason:100"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmMember(Member):
    """A task of the array that has a node; one that was requeued has another name."""

    # Slurm's number of this task. The last task of an array has that of the array itself, so that what is done to this
    # number is done to all of them
    job: str
    task: str  # "ARRAY_INDEX", which is this task and no other
    limit_s: float = math.inf  # seconds that it had left when it was seen first
    is_expiring: bool = False
    is_preempted: bool = False  # which Slurm tells no batch script before the grace time of its partition is over

    @property
    def array(self) -> str:
        """Slurm's number of its array."""
        return self.task.partition("_")[0]


class SlurmNodes(PolledMembers[SlurmMember]):
    """`Members`; see the top of the module.

    Args:
        script: Batch script of a member. It names its node "job$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}".
        begin: Members to begin with, >= 1.
        options: For sbatch: partition, resources, outputs.
        environment: Of Slurm's programs and of the members; by default that of this process.
    """

    name = "slurm"
    waiting = "squeue says where the array stands"

    def __init__(
        self,
        script: Path,
        *,
        begin: int,
        most: int,
        grace_s: float,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(begin=begin, least=1, most=most, close_s=COMMAND_S)
        self._script, self._grace_s = script, grace_s
        self._signal_s = math.ceil(grace_s) + SIGNAL_EARLY_S
        self._options = tuple(options)
        self._environment = environment_of_jobs(environment)
        self._throttles: dict[str, int] = {}
        self._signals: list[tuple[subprocess.Popen[bytes], float]] = []
        self._num_short = 0
        self._to_cancel: list[str] = []
        self._to_notice: list[NodeId] = []
        self._next_drain_s = time.monotonic() + DRAIN_S

    def begin(self) -> None:
        """Submit the array. Raises UsageError when Slurm refuses it: no such partition, no right to submit, more than a
        limit allows, PeerLostError when there is no Slurm here, or it does not answer."""
        self._submit(self._wanted)
        self._thread.start()

    def release(self, node: NodeId) -> None:
        """As of `ResourceManager`: cancel the member, if it still has a node."""
        member = self.members.get(node)
        if member is not None:
            with self._lock:
                self._to_cancel.append(member.task)
            self._woken.set()

    def notice(self, node: NodeId) -> None:
        """Tell a member that it has to leave."""
        with self._lock:
            self._to_notice.append(node)
        self._woken.set()

    def _close(self) -> None:
        """Cancel what is left of the array; members that run get SIGTERM."""
        self._end_signals(math.inf)
        for array in self._throttles:
            self._run("scancel", array, is_checked=False)

    def _turn(self) -> None:
        self._end_signals(time.monotonic())
        running, waiting = self._queue()
        fault = self._judge_ends(running)
        # First of all: nothing is to start in place of a member that is about to leave.
        if not self._is_ending:
            self._throttle(self._wanted, running, waiting)
        else:
            for array in self._throttles:
                self._run("scancel", "--state=PENDING", array, is_checked=False)
        with self._lock:
            cancels, notices = self._to_cancel, self._to_notice
            self._to_cancel, self._to_notice = [], []
        for task in cancels:
            self._run("scancel", task, is_checked=False)
        noticed = [node for node in notices if node in running]
        noticed += [node for node, member in running.items() if member.is_preempted and not member.is_noticed]
        self._signal([running[node] for node in noticed])
        for node in noticed:
            running[node] = replace(running[node], is_noticed=True)
        drained: list[NodeId] = []
        if time.monotonic() >= self._next_drain_s:
            self._next_drain_s = time.monotonic() + DRAIN_S
            drained = self._drained(running) if running else []
            for name in drained:
                running[name] = replace(running[name], is_noticed=True)
        self._found(running, [Revoked(name, self._grace_s) for name in drained], fault=fault)

    def _queue(self) -> tuple[dict[NodeId, SlurmMember], dict[str, int]]:
        """Members that have a node, and how many tasks of each array wait."""
        printed = self._run("squeue", "-h", "-r", "-j", ",".join(self._throttles), "-O", _QUEUE, is_checked=False)
        now_s, known = time.monotonic(), self.members
        running: dict[NodeId, SlurmMember] = {}
        waiting, waits_for = dict.fromkeys(self._throttles, 0), ""
        for line in printed.splitlines():
            fields = line.split()
            if len(fields) < 7 or fields[0] not in waiting:
                continue
            array, job, index, state, restarts, left, preempted = fields[:7]
            name = NodeId(f"job{job}-{restarts}")
            # A task that is requeued has the number of its next stay while it still ends.
            if state == "PD" or (state == "CG" and name not in known):
                waiting[array] += 1
                if state == "PD" and not waits_for:
                    waits_for = " ".join(fields[7:])
            elif state in ("R", "CG", "S", "ST") and len(fields) > 7:
                task, left_s = f"{array}_{index}", seconds_of(left)
                member = known.get(name) or SlurmMember(name, fields[7], now_s, job=job, task=task, limit_s=left_s)
                early_s = self._signal_s + SIGNAL_EARLY_S + REPLACE_S
                # A limit of some minutes: half of it is training.
                is_expiring = left_s <= min(early_s, member.limit_s / 2)
                is_preempted = preempted != "N/A"
                running[name] = replace(member, is_expiring=is_expiring, is_preempted=is_preempted)
        self.waiting = f"squeue says why: {waits_for or 'the array has no task that waits'}"
        return running, waiting

    def _throttle(self, wanted: int, running: Mapping[NodeId, SlurmMember], waiting: Mapping[str, int]) -> None:
        """As many may run as are wanted; an array with no task left is followed by another one."""
        newest = next(reversed(self._throttles))
        if any(member.is_expiring and member.array == newest for member in running.values()):
            # The throttle of this array counts those that are leaving.
            self._run("scancel", "--state=PENDING", newest, is_checked=False)
            num_staying = sum(not member.is_expiring for member in running.values())
            self._submit(max(1, wanted - num_staying))
            return
        num_elsewhere = sum(member.array != newest and not member.is_expiring for member in running.values())
        # Tasks of an older array that were requeued come back by themselves.
        num_elsewhere += sum(count for array, count in waiting.items() if array != newest)
        throttle = wanted - num_elsewhere
        if throttle <= 0:  # Slurm takes 0 for no limit
            if waiting[newest]:
                self._run("scancel", "--state=PENDING", newest, is_checked=False)
        elif not waiting[newest]:
            num_here = sum(member.array == newest for member in running.values())
            if throttle > num_here:
                self._submit(throttle - num_here)
        elif self._throttles[newest] != throttle:
            # It fails for the tasks that have ended, and says so; the others have the new limit.
            self._run("scontrol", "update", f"ArrayTaskThrottle={throttle}", f"JobId={newest}", is_checked=False)
            self._throttles[newest] = throttle

    def _signal(self, members: Sequence[SlurmMember]) -> None:
        """Give notice, to all of them at once. Slurm 22.05 delivers the signal at once, and then scancel repeats it for
        seconds (for a number) or for half a minute (for "ARRAY_INDEX", which the last task of an array needs), so that
        it is not waited for."""
        for member in members:
            is_last = member.job == member.array
            command = ("scancel", "--batch", "--signal=USR1", member.task if is_last else member.job)
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self._signals.append((process, time.monotonic() + SIGNAL_S))

    def _end_signals(self, now_s: float) -> None:
        """End what repeats a signal that has been delivered."""
        for process, end_s in self._signals:
            if process.poll() is None and now_s >= end_s:
                process.kill()
                process.wait()
        self._signals = [signal for signal in self._signals if signal[0].returncode is None]

    def _judge_ends(self, running: Mapping[NodeId, SlurmMember]) -> str | None:
        """Return why the run cannot go on, if too many members have failed one after the other; one that was taken
        away, or has left in order, is none of them."""
        now_s = time.monotonic()
        for name, member in self.members.items():
            if name not in running:
                is_short = now_s - member.since_s < SHORT_S
                self._num_short = self._num_short + 1 if is_short and self._has_failed(member) else 0
        if self._num_short <= max(LEAST_SHORT, self._most):
            return None
        return (
            f"{self._num_short} members one after the other have failed within {SHORT_S:g} s of their start; look at "
            "the outputs of the array"
        )

    def _has_failed(self, member: SlurmMember) -> bool:
        shown = self._run("scontrol", "-o", "show", "job", member.task, is_checked=False)
        return re.search(r"JobState=(FAILED|OUT_OF_MEMORY|BOOT_FAIL)", shown) is not None

    def _drained(self, running: Mapping[NodeId, SlurmMember]) -> list[NodeId]:
        hosts = ",".join(sorted({member.host for member in running.values()}))
        printed = self._run("sinfo", "-h", "-N", "-n", hosts, "-O", "NodeList:100,StateCompact:20", is_checked=False)
        states = dict(line.split()[:2] for line in printed.splitlines() if len(line.split()) > 1)
        return [
            name
            for name, member in running.items()
            if not member.is_noticed and DRAINING.match(states.get(member.host, ""))
        ]

    def _submit(self, throttle: int) -> None:
        printed = self._run(
            "sbatch",
            "--parsable",
            f"--array=0-{min(TASKS_PER_MEMBER * self._most, MOST_TASKS) - 1}%{throttle}",
            "--requeue",
            f"--signal=B:USR1@{int(self._signal_s)}",
            "--open-mode=append",
            *self._options,
            str(self._script),
        )
        self._throttles[printed.strip().partition(";")[0]] = throttle

    def _run(self, *command: str, is_checked: bool = True) -> str:
        return run_program(*command, is_checked=is_checked, environment=self._environment)


def run_program(*command: str, is_checked: bool = True, environment: Mapping[str, str] | None = None) -> str:
    """Run a program of Slurm's; returns what it prints. Raises PeerLostError when there is none, or it does not answer,
    UsageError when it is checked and refuses."""
    environment = environment_of_jobs() if environment is None else environment
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise PeerLostError(
            f"there is no {command[0]} on this host; go where Slurm's programs are, as sbatch does"
        ) from None
    except subprocess.TimeoutExpired:
        raise PeerLostError(f"{command[0]} has not answered within {COMMAND_S:g} s: is slurmctld there?") from None
    if is_checked and done.returncode:
        said = "; ".join(done.stderr.split("\n")).strip("; ") or done.returncode
        raise UsageError(f"{command[0]} refuses: {said} ({' '.join(command)})")
    return done.stdout


def shown(*what: str, environment: Mapping[str, str] | None = None) -> list[dict[str, str]]:
    """Return what `scontrol show` says of jobs or partitions, field by field; nothing of those that it does not know.
    Raises PeerLostError as `run_program` does."""
    printed = run_program("scontrol", "--oneliner", "show", *what, is_checked=False, environment=environment)
    lines = [line for line in printed.splitlines() if "=" in line]
    return [dict(word.partition("=")[::2] for word in line.split()) for line in lines]


def partitions(asked: str | None) -> dict[str, dict[str, str]]:
    """Return the partitions by name. Raises UsageError when the one that was asked for is none of them."""
    found = {fields["PartitionName"]: fields for fields in shown("partition")}
    if asked is not None and asked not in found:
        raise UsageError(f"Slurm has no partition {asked}; it has {', '.join(found)}")
    return found


def preempted_partition(asked: str | None) -> str:
    """Return a partition whose jobs those of another one preempt: the one that was asked for, else the one of the
    lowest tier. Raises UsageError when Slurm has no such partition."""
    found = partitions(asked)
    tiers = {name: int(fields["PriorityTier"]) for name, fields in found.items()}
    preempted = [
        name
        for name in sorted(found, key=tiers.__getitem__)
        if GIVEN_BACK & {*found[name]["PreemptMode"].split(",")} and tiers[name] < max(tiers.values())
    ]
    if asked is None and preempted:
        return preempted[0]
    if asked in preempted:
        return asked
    raise UsageError(
        f"no partition preempts jobs of {asked or 'another one'} on this Slurm, and --backfill would keep nodes that "
        f"others wait for; those of {', '.join(preempted) or 'none'} are preempted, or name a preempted QOS, "
        "--sbatch=--qos=NAME"
    )


def seconds_of(text: str) -> float:
    """Seconds of a time as Slurm prints it, "1-02:03:04", "3:04" or "UNLIMITED"; infinite where it is none."""
    days, _, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or not (days == "" or days.isdigit()):
        return math.inf
    seconds = 0.0
    for part in parts:
        seconds = 60.0 * seconds + int(part)
    return seconds + 86400.0 * int(days or 0)
