"""What an agent costs beside its task: processor, memory and packets of real agents over a minute.

    waits    two members of a job that waits for a third node
    spare    a third agent of a job of at most two nodes
    trains   two members whose iterations take 100 ms

Packets are the TCP segments of the agent's own sockets, both ways, as the kernel counts them (`ss`); memory is what is
resident. Each agent writes event files and serves metrics, which are asked for every 15 s, as by Prometheus.

    python -m benchmarks.idle [--seconds 60]
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from chicle_elastic.cluster.net.event_file import read_events
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.settings import limited_environment
from chicle_elastic.transports.secret import JobSecret

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests/cluster/train_svm.py"
SCRAPE_S = 15.0
READY_S = 120.0
TICK_S = 0.01  # of /proc/PID/stat
CASES = (("waits", "3:3", 2), ("spare", "2:2", 3), ("trains", "2:2", 2))  # name, nodes, agents


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def resident_mib(pid: int) -> float:
    """Memory of a process that is resident."""
    [line] = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) / 1024


def segments(pid: int) -> int:
    """TCP segments that the open connections of a process have sent and received."""
    shown = subprocess.run(["ss", "-HOtinp"], capture_output=True, text=True, check=True).stdout
    mine = [line for line in shown.splitlines() if f"pid={pid}," in line]
    return sum(int(count) for line in mine for count in re.findall(r"segs_(?:out|in):(\d+)", line))


def measure(folder: Path, nodes: str, count: int, seconds: float) -> Sequence[tuple[float, float, float]]:
    """Share of a core, MiB and packets a second of each agent of a job."""
    JobSecret.create(folder / "job.secret")
    agents = []
    with StoreServer() as store:
        for number in range(count):
            options = [
                "--nnodes",
                nodes,
                "--rdzv-endpoint",
                store.endpoint,
                "--secret-file",
                str(folder / "job.secret"),
            ]
            options += ["--name", f"n{number}", "--log-dir", str(folder), "--metrics", "0"]
            script = [str(SCRIPT), "--out", str(folder), "--end-file", str(folder / "end"), "--min-ms", "100"]
            command = [sys.executable, "-m", "chicle_elastic.launch", *options, *script, "--tol", "0"]
            agents.append(subprocess.Popen(command, cwd=ROOT, env=limited_environment(1)))
        try:
            wait_until_ready(folder, count)
            time.sleep(5.0)
            pids = [agent.pid for agent in agents]
            urls = [event["url"] for event in read_events(folder) if event["kind"] == "metrics"]
            begin_s, before = time.monotonic(), [(cpu_s(pid), segments(pid)) for pid in pids]
            while (left_s := begin_s + seconds - time.monotonic()) > 0:
                for url in urls:
                    urllib.request.urlopen(url, timeout=10).read()
                time.sleep(min(SCRAPE_S, left_s))
            took_s = time.monotonic() - begin_s
            return [
                ((cpu_s(pid) - cpu) / took_s, resident_mib(pid), (segments(pid) - sent) / took_s)
                for pid, (cpu, sent) in zip(pids, before, strict=True)
            ]
        finally:
            (folder / "end").touch()
            for agent in agents:
                agent.terminate()
            for agent in agents:
                agent.wait()


def wait_until_ready(folder: Path, count: int) -> None:
    """Wait until the tasks of all agents are ready."""
    end_s = time.monotonic() + READY_S
    while len({event["node"] for event in read_events(folder) if event["kind"] == "hot"}) < count:
        if time.monotonic() > end_s:
            raise TimeoutError(f"the agents are not ready after {READY_S:g} s")
        time.sleep(0.2)


def main() -> int:
    """Run the command line; return the exit code: 1 when an agent costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    is_met = True
    print("| job | agent | share of a core (gate 1 %) | resident (gate 80 MiB) | TCP segments a second |")
    print("| --- | --- | --- | --- | --- |")
    for name, nodes, count in CASES:
        with tempfile.TemporaryDirectory() as folder:
            for number, (share, mib, packets) in enumerate(measure(Path(folder), nodes, count, seconds)):
                print(f"| {name} | n{number} | {share:.2%} | {mib:.0f} MiB | {packets:.1f} |", flush=True)
                is_met &= mib <= 80 and (share <= 0.01 or name == "trains")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
