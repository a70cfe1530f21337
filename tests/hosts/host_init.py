"""The first process of a host: it gives the host its names and its memory, and keeps it alive.

    unshare --net --uts --ipc --mount --pid --fork --mount-proc --kill-child python host_init.py NAME FOLDER

The folder has the host's `hosts`, `hostname` and `boot_id`. When standard input ends, this process ends; the kernel
then kills every process of the host, and mounts and devices go with the last of them. So nothing is left of a host,
however the tests ended.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Set the host up, print "ready", and wait for the end of standard input."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    (folder / "resolv.conf").touch()
    socket.sethostname(name)
    for path in ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/proc/sys/kernel/random/boot_id"):
        subprocess.run(["mount", "--bind", str(folder / Path(path).name), path], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans of the host are its children, and need no parent
    print("ready", flush=True)
    while os.read(sys.stdin.fileno(), 1):
        pass


if __name__ == "__main__":
    main()
