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
