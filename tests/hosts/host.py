"""A host of the lab: namespaces of its own, kept alive by its first process (`host_init`)."""

import contextlib
import enum
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tests.hosts.host_process import HostProcess, ProgramProcess, enter
from tests.timeouts import timeout_s

INIT = Path(__file__).with_name("host_init.py")
END_S = 10.0

T = TypeVar("T")


class Names(enum.Enum):
    """What a host's /etc/hosts says."""

    FULL = "every host, and this one, by the address on the network"
    DEBIAN = "the others by their addresses, this one as 127.0.1.1: what Debian's and Ubuntu's installers write"
    NONE = "localhost and nothing else; there is no name server either"


class Host:
    """One host, from boot to power off. `boot` has to follow, and its network device comes from the lab.

    Args:
        name: Host name.
        folder: New; for the files that the host sees in /etc.
        hosts: Content of its /etc/hosts.
        monotonic_offset_s: How much later than on this machine its monotonic clock is.

    Attributes:
        addresses: IP addresses of its eth0.
    """

    def __init__(
        self, name: str, folder: Path, *, hosts: str, addresses: Sequence[str], monotonic_offset_s: int = 0
    ) -> None:
        self.name, self.addresses = name, tuple(addresses)
        folder.mkdir(parents=True)
        (folder / "hosts").write_text(hosts)
        (folder / "hostname").write_text(f"{name}\n")
        (folder / "boot_id").write_text(f"{secrets.token_hex(16)}\n")  # agents compare it to know their own host
        clock = ("--time", "--monotonic", str(monotonic_offset_s)) if monotonic_offset_s else ()
        self._processes: list[HostProcess | ProgramProcess] = []
        self._init_pid = 0
        self._errors = folder / "stderr"
        with self._errors.open("w") as errors:
            self._unshare = subprocess.Popen(
                [
                    *("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc"),
                    *("--kill-child", *clock, "--", sys.executable, "-S", "-E", str(INIT), name, str(folder)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the tests, which end the host in order
            )

    def await_boot(self) -> None:
        """Wait until the host has its names."""
        assert self._unshare.stdout is not None
        if self._unshare.stdout.readline() != b"ready\n":
            raise RuntimeError(
                f"host {self.name} does not start: exit code {self._unshare.wait()}\n{self._errors.read_text()}"
            )
        pid = self._unshare.pid
        self._init_pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    @property
    def pid(self) -> int:
        """Of the first process of the host, as this process sees it."""
        return self._init_pid

    @property
    def is_on(self) -> bool:
        """Whether the host has not been powered off."""
        return self._unshare.poll() is None

    def set_addresses(self) -> None:
        """Bring eth0 up, with the addresses."""
        lines = ["link set eth0 up"]
        for address in self.addresses:
            options = "/64 dev eth0 nodad" if ":" in address else "/24 dev eth0"
            lines.append(f"addr add {address}{options}")
        self.run("ip", "-batch", "-", text="\n".join(lines) + "\n")

    def run(self, *command: str, text: str = "") -> str:
        """Run a program to its end; returns what it has printed. Raises CalledProcessError when it failed."""
        result = subprocess.run(
            [*self._enter(), *command], input=text, capture_output=True, text=True, timeout=timeout_s(30), check=True
        )
        return result.stdout

    def start(
        self, command: Sequence[str], output: Path, *, environ: Mapping[str, str], is_container: bool = False
    ) -> ProgramProcess:
        """Start a program.

        Args:
            command: With its arguments.
            output: File for what it prints.
            environ: Further variables of its environment.
            is_container: Give it a PID namespace of its own, in which it is process 1.
        """
        own = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--") if is_container else ()
        process = ProgramProcess([*self._enter(), *own, *command], output, environ, depth=1 + bool(own))
        self._processes.append(process)
        return process

    def fork(self, body: Callable[..., Any], *arguments: Any, output: Path) -> HostProcess:
        """Call a function in a new process of the host, which has torch and the agent imported already.

        Args:
            body: A function of a module; what it returns is the exit code.
            arguments: Of the function.
            output: File for what it prints.
        """
        process = HostProcess(self._init_pid, body, arguments, output)
        self._processes.append(process)
        return process

    def inside(self, call: Callable[[], T]) -> T:
        """Call a function in a thread of this process that uses the network of the host; its sockets stay there."""
        with ThreadPoolExecutor(1, initializer=lambda: enter(self._init_pid, ("net",))) as executor:
            return executor.submit(call).result()

    def read(self, path: str) -> str:
        """The content of a file, as processes of the host see it."""
        return (Path(f"/proc/{self._init_pid}/root") / path.lstrip("/")).read_text()

    def processes(self) -> dict[int, str]:
        """Command lines of the processes of the host, by process id, without those that keep it alive.

        A process that has entered the host's network and not its PID namespace waits for one that has, and keeps it
        alive, too.
        """
        network, outside = _namespace(self._init_pid, "net"), _namespace(os.getpid(), "pid")
        found = {}
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            with contextlib.suppress(OSError):
                is_inside = _namespace(pid, "net") == network and _namespace(pid, "pid") != outside
                if pid != self._init_pid and is_inside and not _is_zombie(pid):
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return found

    def kill_processes(self) -> None:
        """SIGKILL for every process of the host but its first: the kernel closes their connections."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def leftovers(self) -> Iterator[str]:
        """What processes that have ended left on the host: processes, shared memory, listening sockets."""
        for pid, command in self.processes().items():
            yield f"process {pid} still runs on {self.name}: {command}"
        for name in os.listdir(f"/proc/{self._init_pid}/root/dev/shm"):
            yield f"shared memory is left on {self.name}: {name}"
        for file in ("tcp", "tcp6"):
            lines = Path(f"/proc/{self._init_pid}/net/{file}").read_text().splitlines()[1:]
            yield from (f"a socket still listens on {self.name}: {line}" for line in lines if line.split()[3] == "0A")

    def power_off(self) -> None:
        """End the host at once, with everything that runs there. Its link should be down first."""
        if self._init_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init_pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Power the host off, if it is on, and wait until all its processes are gone."""
        assert self._unshare.stdin is not None
        assert self._unshare.stdout is not None
        self._unshare.stdin.close()
        self._unshare.wait(END_S)
        self._unshare.stdout.close()
        for process in self._processes:
            process.close()
        self._processes.clear()

    def _enter(self) -> list[str]:
        return ["nsenter", "--target", str(self._init_pid), "--net", "--uts", "--ipc", "--mount", "--pid", "--time"]


def _namespace(pid: int, kind: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
