"""Runs a command in a guest with Soft-RoCE, on the files of this machine, which it cannot change."""

import contextlib
import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rdma.vm.image import HERE, Image

NEVER_ENDED = 125
"""The status of a command whose machine ended before it did."""
KERNEL_WORDS = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on tsc=reliable no_timer_check "
    "rcupdate.rcu_expedited=1"
)
CONSOLE_LINES = 40


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A virtual machine, started anew for each command."""

    image: Image  # what it starts from
    memory_mib: int = 1536  # its memory
    timeout_s: float = 600.0  # longest time that a command may take, start of the machine included
    # whether its clock follows the instructions that it runs and not the time that this takes: what is measured in the
    # guest then does not depend on the load of this machine
    counts_instructions: bool = False
    num_processors: int = 1  # how many it has; with more than one its clock cannot follow instructions

    def run(self, command: Sequence[str], *, folder: Path, environ: dict[str, str] | None = None) -> int:
        """Run a command in a folder of this machine; what it prints is printed here. Returns its exit status."""
        with tempfile.TemporaryDirectory(prefix="chicle-machine-") as shared:
            Path(shared, "start.sh").write_text(self._start(command, folder, environ or {}), encoding="utf-8")
            with subprocess.Popen(
                self._qemu(shared), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            ) as process:
                clock = threading.Timer(self.timeout_s, process.kill)
                clock.start()
                try:
                    assert process.stdout is not None
                    while content := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                        sys.stdout.buffer.write(content)
                        sys.stdout.flush()
                finally:
                    clock.cancel()
                    process.kill()
            status = NEVER_ENDED
            with contextlib.suppress(OSError, ValueError):
                status = int(Path(shared, "status").read_text(encoding="ascii"))
            if status == NEVER_ENDED:
                console = Path(shared, "console").read_text(encoding="utf-8", errors="replace").splitlines()
                print(f"the machine ended before the command did (limit {self.timeout_s:g} s); its console said:")
                print("\n".join(console[-CONSOLE_LINES:]), flush=True)
            return status

    def _qemu(self, shared: str) -> list[str]:
        clock = ["-icount", "shift=1,sleep=off"] if self.counts_instructions else []
        accelerator = "tcg" if self.num_processors == 1 else "tcg,thread=multi"
        return [
            shutil.which("qemu-system-x86_64") or "qemu-system-x86_64", "-nodefaults", "-no-user-config",
            "-display", "none", "-no-reboot", "-M", "q35", "-accel", accelerator, "-cpu", "max",
            "-m", str(self.memory_mib), "-smp", str(self.num_processors), *clock,
            "-kernel", str(self.image.kernel), "-initrd", str(self.image.start_files), "-append", KERNEL_WORDS,
            "-device", "isa-debug-exit,iobase=0xf4,iosize=0x01",
            "-chardev", f"file,id=console,path={shared}/console", "-serial", "chardev:console",
            # A chardev on stdio would look at standard input, whose end stops the guest's output.
            "-device", "virtio-serial-pci", "-chardev", "file,id=command,path=/dev/fd/1,append=on",
            "-device", "virtserialport,chardev=command,name=command",
            "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
            "-virtfs", f"local,path={shared},mount_tag=machine,security_model=none",
        ]  # fmt: skip

    def _start(self, command: Sequence[str], folder: Path, environ: dict[str, str]) -> str:
        python_path = [str(folder), str(self.image.pyverbs)]
        variables = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": os.environ.get("HOME", "/root"),
            "LC_ALL": "C.UTF-8",
            "TMPDIR": "/run/tmp",
            "PYTHONPATH": ":".join(python_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "CHICLE_RDMA_MACHINE": "1",
            **environ,
        }
        if not _has_libpython():
            variables["LD_LIBRARY_PATH"] = str(self.image.libraries)
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        lines += ["mkdir -p /run/tmp", "ulimit -l unlimited", (HERE / "network.sh").read_text(encoding="utf-8")]
        lines += [f"cd {shlex.quote(str(folder))}", shlex.join(command)]
        return "\n".join(lines) + "\n"


def _has_libpython() -> bool:
    """Whether this interpreter finds the library that pyverbs is linked with: its own, or that of the distribution."""
    try:
        ctypes.CDLL("libpython{}.{}.so.1.0".format(*sys.version_info))
    except OSError:
        return False
    return True
