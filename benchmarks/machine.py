"""What a benchmark ran on, in words."""

import os
import platform
from pathlib import Path


def machine() -> str:
    """The processor by name, where Linux tells it, and how many there are."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}"


def memory_mib(pid: int) -> list[float]:
    """PSS and USS of a process, in MiB."""
    fields: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size, *_ = line.split()
        fields[name.rstrip(":")] = int(size)
    own = fields["Private_Clean"] + fields["Private_Dirty"]
    return [round(fields["Pss"] / 1024, 1), round(own / 1024, 1)]
