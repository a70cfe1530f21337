"""A Slurm of this test's own: munged, slurmctld and several slurmd on one machine, without systemd; slurmdbd if wanted.

Everything that it writes is in one folder; nothing in /etc is used or changed. The nodes n1, n2, ... are daemons of
this host with a port each, so jobs on them share its file system and its loopback.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.timeouts import timeout_s

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacct")
KILL_WAIT_S = 30
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.sock"""
DBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=root
StorageLoc=slurm
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""
CONF = """\
ClusterName=chicle
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
{accounting}
ReturnToService=2
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
PlugStackConfig=/dev/null
SlurmctldTimeout=30
SlurmdTimeout=20
KillWait={kill_wait_s}
MinJobAge=3600
InactiveLimit=0
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,bf_continue,batch_sched_delay=0,requeue_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=500
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{early_notice}
JobRequeue=1
{nodes}
PartitionName=main Nodes=ALL Default=NO PriorityTier=10 MaxTime=INFINITE DefaultTime=60 State=UP PreemptMode=REQUEUE
PartitionName=spot Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE DefaultTime=60 State=UP GraceTime=20
PartitionName=idle Nodes=ALL Default=NO PriorityTier=1 MaxTime=INFINITE DefaultTime=60 State=UP GraceTime=0
"""


def reason_to_skip(*, has_accounting: bool = False) -> str | None:
    """Why there can be no Slurm here; None if there can."""
    programs = [*PROGRAMS, *(ACCOUNTING_PROGRAMS if has_accounting else ())]
    missing = [program for program in programs if _find(program) is None]
    return f"needs {', '.join(missing)}: make test-slurm installs them" if missing else None


class PrivateSlurm:
    """See the top of the module; a context manager.

    Args:
        folder: For keys, state and logs.
        num_nodes: Nodes n1, n2, ...; one job at a time on each.
        has_accounting: With slurmdbd, and a database for it.
        has_early_notice: Batch scripts hear of a preemption at once, and not when the grace time is over.

    Attributes:
        environment: What a process needs to be a client of it.
    """

    def __init__(
        self, folder: Path, num_nodes: int, *, has_accounting: bool = False, has_early_notice: bool = True
    ) -> None:
        self.folder, self._has_accounting, self._has_early_notice = folder, has_accounting, has_early_notice
        self.nodes = [f"n{number}" for number in range(1, num_nodes + 1)]
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "PrivateSlurm":
        try:
            self._configure()
            self._start("munged", "--foreground", *self._munge_options())
            self._wait(lambda: (self.folder / "munge.sock").exists(), "munged to listen")
            if self._has_accounting:
                self._start_accounting()
            self._start("slurmctld", "-D", "-f", self.environment["SLURM_CONF"])
            for node in self.nodes:
                self.start_node(node)
            self._wait(lambda: len(self.idle()) == len(self.nodes), "all nodes to be idle")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel every job, and end every daemon and what is left of jobs."""
        if "slurmctld" in self._daemons:
            user = _user()
            with contextlib.suppress(subprocess.SubprocessError):
                self.run("scancel", "-u", user)
                # Slurm waits for a job whose processes another daemon of a node has started until KillWait.
                self._kill(self._processes_of_jobs())
                self._wait(lambda: not self.run("squeue", "-h"), "jobs to end")
        for name in reversed(list(self._daemons)):
            self._end(name)
        self._kill(self._processes_of_jobs())

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._start(node, "-D", "-N", node, "-f", self.environment["SLURM_CONF"], program="slurmd")

    def kill_node(self, node: str) -> None:
        """The node is gone at once: its daemon, and the job on it."""
        jobs = self.run("squeue", "-h", "-w", node, "-o", "%A").split()
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        self._kill(self._processes_of_jobs(jobs))

    def run(self, *command: str) -> str:
        """What a client program of it prints.

        Raises:
            subprocess.CalledProcessError: It failed.
        """
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True, timeout=timeout_s(30)
        )
        return done.stdout

    def idle(self) -> list[str]:
        """Nodes without a job."""
        try:
            return sorted(set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()))
        except subprocess.CalledProcessError:  # it does not listen yet
            return []

    # How.

    @staticmethod
    def _kill(pids: Sequence[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _start_accounting(self) -> None:
        """A database, and slurmdbd, which makes its tables there."""
        data, ready = self.folder / "database", self.folder / "database.sock"
        options = ["--no-defaults", f"--datadir={data}", f"--user={_user()}"]
        install = [*options, "--auth-root-authentication-method=normal", "--skip-test-db"]
        self.run("mariadb-install-db", *install)
        more = [f"--socket={ready}", f"--port={self._database_port}", "--bind-address=127.0.0.1", "--skip-grant-tables"]
        self._start("mariadbd", *options, *more, f"--pid-file={self.folder / 'database.pid'}")
        self._wait(ready.exists, "the database to listen")
        self._start("slurmdbd", "-D")
        self._wait(lambda: _listens(self._accounting_port), "slurmdbd to listen")

    def _configure(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        host = socket.gethostname().split(".")[0]
        *ports, self._accounting_port, self._database_port = _free_ports(len(self.nodes) + 3)
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=3000 State=UNKNOWN"
            for node, port in zip(self.nodes, ports[1:], strict=True)
        ]
        user = _user()
        accounting = "AccountingStorageType=accounting_storage/none"
        if self._has_accounting:
            accounting = ACCOUNTING.format(port=self._accounting_port, folder=self.folder)
            path = self.folder / "slurmdbd.conf"
            path.write_text(
                DBD_CONF.format(
                    folder=self.folder, port=self._accounting_port, user=user, database_port=self._database_port
                )
            )
            path.chmod(0o600)
        text = CONF.format(
            host=host,
            port=ports[0],
            user=user,
            folder=self.folder,
            nodes="\n".join(lines),
            kill_wait_s=KILL_WAIT_S,
            accounting=accounting,
            early_notice="SlurmctldParameters=preempt_send_user_signal" if self._has_early_notice else "",
        )
        (self.folder / "slurm.conf").write_text(text)
        # slurmd looks for cgroups even where it uses none, and finds none in a container.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _munge_options(self) -> Sequence[str]:
        names = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munge.pid", "log-file": "munge.log"}
        options = [f"--{option}={self.folder / name}" for option, name in names.items()]
        return [*options, f"--seed-file={self.folder / 'munge.seed'}", "--num-threads=2", "--force"]

    def _start(self, name: str, *arguments: str, program: str | None = None) -> None:
        found = _find(program or name)
        assert found is not None
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                [found, *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(timeout_s(10))
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _processes_of_jobs(self, jobs: Sequence[str] | None = None) -> list[int]:
        """Processes with the environment of a job of this Slurm (of one of these), which are not its daemons."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            environment = _environment(entry)
            is_ours = environment.get("SLURM_CONF") == self.environment["SLURM_CONF"] and "SLURM_JOB_ID" in environment
            if is_ours and (jobs is None or environment["SLURM_JOB_ID"] in jobs):
                found.append(int(entry.name))
        return found

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + timeout_s(60)
        while not is_so():
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    printed = (self.folder / f"{name}.out").read_text()[-2000:]
                    raise RuntimeError(f"{name} ended with code {daemon.returncode}: {printed}")
            if time.monotonic() > end_s:
                raise TimeoutError(f"waited for {what} in vain; the logs are in {self.folder}")
            time.sleep(0.1)


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def _user() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def _environment(process: Path) -> Mapping[str, str]:
    try:
        pairs = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs if b"=" in pair)
