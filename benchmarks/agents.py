"""Agents of a benchmark on this host that run one program to its end."""

import subprocess
import sys
from pathlib import Path

from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.transports.secret import JobSecret


def run_agents(number: int, folder: Path, *program: str, has_logs: bool = True) -> None:
    """Run a program (`-m MODULE ...`) on so many agents.

    Args:
        number: Of agents.
        folder: For the secret, and for event files if there are any.
        program: What the tasks run.
        has_logs: Whether agents write event files.

    Raises:
        SystemExit: An agent failed.
    """
    secret = folder / "job.secret"
    JobSecret.load_or_create(secret)
    with StoreServer() as store:
        nodes = []
        for which in range(number):
            command = [
                *(sys.executable, "-m", "chicle_elastic.launch", "--nnodes", f"{number}:{number}"),
                *("--name", f"n{which}", "--rdzv-endpoint", store.endpoint, "--secret-file", str(secret)),
                *(("--log-dir", str(folder)) if has_logs else ()),
                *program,
            ]
            nodes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        outputs = [node.communicate()[0] for node in nodes]
    if any(node.returncode for node in nodes):
        sys.exit(f"a measured node failed:\n{outputs}")
