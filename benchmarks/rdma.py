"""What the verbs transport costs beside the bare cards: throughput, other threads, memory. Runs in the test machine.

    make bench-rdma        boots the machine with a clock that counts instructions, and runs this in it

Throughput: READs of 1 MiB into slots by `fetch_each`, against `ib_read_bw` (perftest, written in C) with messages of
the same size between the same two devices; both have the owner in a process of its own. Runs alternate, and the ratio
is the median of the ratios of neighbours. Threads: a thread that wants to wake up every 20 ms, beside transfers and
beside nothing; what counts is the latest wake-up. Beside `ib_read_bw` it shows how late the cards alone make it.
Memory: resident pages of this process, which is owner and reader, around 100,000 READs.

The clock follows the instructions that the machine runs, so that the load of the host has no part in any figure. About
network cards the figures say nothing: Soft-RoCE computes every packet on the one processor that also runs this.

Exit code 1 when a bar is missed.
"""

import gc
import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.bars import Bar, Row
from benchmarks.report import Report, parser
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.base import Pull, Region
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.verbs.transport import VerbsTransport

MIN_RATIO = 0.95
MAX_DELAY_S = 0.05
MAX_GROWTH_BYTES = 1 << 20
NUM_READS = 100_000
HOSTS = ("10.8.0.1", "10.8.0.2")
DEVICES = ("rxe0", "rxe1")
SLOT_BYTES = 1 << 20
NUM_SLOTS = 16
SMALL_BYTES = 256
BEAT_S = 0.02
TIMEOUT_S = 300.0
PERFTEST_TIMEOUT_S, PERFTEST_TRIES = 30.0, 5

OWNER = """
import sys
from pathlib import Path
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.verbs.transport import VerbsTransport
arena = Arena.create(16, slot_bytes=1 << 20)
transport = VerbsTransport("tcp://10.8.0.1:0", JobSecret.load(Path(sys.argv[1])), name="owner")
transport.register(arena)
print(transport.address, flush=True)
sys.stdin.read()
transport.close()
arena.close()
"""


def perftest(num_reads: int) -> float:
    """MiB/s of `ib_read_bw`, at its best: where it polls without a pause it keeps the processor from the cards."""
    for _ in range(PERFTEST_TRIES):
        speed = _try_perftest(["ib_read_bw", "-e", "-x", "1", "-s", str(SLOT_BYTES), "-n", str(num_reads), "-F"])
        if speed is not None:
            return speed
    raise RuntimeError(f"ib_read_bw did not end in {PERFTEST_TRIES} tries")


def _try_perftest(command: list[str]) -> float | None:
    """One run; None when it missed its last event, as it does once in a while with one processor."""
    with subprocess.Popen([*command, "-d", DEVICES[0]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):  # it listens a moment after its start
                time.sleep(0.1)
                client = subprocess.run(
                    [*command, "-d", DEVICES[1], HOSTS[0]],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=PERFTEST_TIMEOUT_S,
                )
                if found := re.search(rf"^\s*{SLOT_BYTES}\s+\d+\s+\S+\s+(\S+)", client.stdout, re.MULTILINE):
                    return float(found[1])
            raise RuntimeError(f"ib_read_bw said: {client.stdout} {client.stderr}")
        except subprocess.TimeoutExpired:
            return None
        finally:
            server.kill()


def pulls_of(target: Arena, num_reads: int) -> list[Pull]:
    """Slots of the owner, round and round."""
    slots = [number % NUM_SLOTS for number in range(num_reads)]
    return [Pull(Region(0, slot * SLOT_BYTES, SLOT_BYTES), target.view(slot)) for slot in slots]


def fetch(reader: VerbsTransport, address: str, pulls: list[Pull]) -> float:
    """MiB/s of our READs."""
    begin = time.perf_counter()
    for _, error in reader.fetch_each(address, pulls, timeout_s=TIMEOUT_S):
        if error is not None:
            raise error
    duration_s = time.perf_counter() - begin
    return sum(pull.region.size_bytes for pull in pulls) / duration_s / 2**20


def latest_beat_s(stop: threading.Event) -> float:
    """How late the latest wake-up was, of one every 20 ms until `stop`."""
    latest_s, due_s = 0.0, time.perf_counter() + BEAT_S
    while not stop.is_set():
        time.sleep(max(0.0, due_s - time.perf_counter()))
        now_s = time.perf_counter()
        latest_s = max(latest_s, now_s - due_s)
        due_s = now_s + BEAT_S
    return latest_s


def beats_beside(work: "threading.Thread | None", duration_s: float) -> float:
    """Latest beat of a thread beside another, or beside nothing for as long."""
    stop, found = threading.Event(), []
    beats = threading.Thread(target=lambda: found.append(latest_beat_s(stop)))
    beats.start()
    if work is None:
        time.sleep(duration_s)
    else:
        work.start()
        work.join()
    stop.set()
    beats.join()
    return found[0]


def resident_bytes() -> int:
    """Pages of this process in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def grow_bytes(reader: VerbsTransport, owner: VerbsTransport, num_reads: int) -> list[int]:
    """Growth over each tenth of the READs; the first tenth is to warm up and is not counted."""
    with Arena.create(1, slot_bytes=1 << 16) as ours, Arena.create(1, slot_bytes=1 << 16) as theirs:
        number = owner.register(theirs)
        reader.register(ours)
        view = ours.view(0)
        pulls = [
            Pull(Region(number, start, SMALL_BYTES), view[start : start + SMALL_BYTES])
            for start in range(0, 1 << 16, SMALL_BYTES)
        ]
        sizes = []
        for _ in range(11):
            for _ in range(max(1, num_reads // 10 // len(pulls))):
                fetch(reader, owner.address, pulls)
            gc.collect()
            sizes.append(resident_bytes())
        pulls.clear()
        view.release()
        return [after - before for before, after in itertools.pairwise(sizes)]


def main() -> int:
    """Measure, print, compare with the bars."""
    line = parser(__doc__)
    line.add_argument("--rounds", type=int, default=3)
    line.add_argument("--slots", type=int, default=64, help="READs of 1 MiB per run")
    line.add_argument("--reads", type=int, default=NUM_READS)
    arguments = line.parse_args()
    report = Report(arguments, repeats=arguments.rounds)
    secret = JobSecret.generate()
    with tempfile.TemporaryDirectory() as folder, Arena.create(NUM_SLOTS, slot_bytes=SLOT_BYTES) as target:
        file = Path(folder, "secret")
        secret.save(file)
        with (
            subprocess.Popen(
                [sys.executable, "-c", OWNER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as process,
            VerbsTransport(f"tcp://{HOSTS[1]}:0", secret, name="reader") as reader,
            VerbsTransport(f"tcp://{HOSTS[0]}:0", secret, name="here") as here,
        ):
            assert process.stdout is not None
            assert process.stdin is not None
            address = process.stdout.readline().strip()
            begin = time.perf_counter()
            reader.register(target)
            registration_s = time.perf_counter() - begin
            pulls = pulls_of(target, arguments.slots)
            fetch(reader, address, pulls[:4])
            speeds = []
            for _ in range(arguments.rounds):
                speeds.append((fetch(reader, address, pulls), perftest(arguments.slots)))
                print(f"READs {speeds[-1][0]:.1f} MiB/s, ib_read_bw {speeds[-1][1]:.1f} MiB/s", flush=True)
            ratio = statistics.median(ours / theirs for ours, theirs in speeds)
            begin = time.perf_counter()
            transfer = threading.Thread(target=fetch, args=(reader, address, pulls))
            beside_s = beats_beside(transfer, 0.0)
            alone_s = beats_beside(None, time.perf_counter() - begin)
            bare = threading.Thread(target=perftest, args=(arguments.slots,))
            bare_s = beats_beside(bare, 0.0)
            growth = grow_bytes(reader, here, arguments.reads)
            print(f"growth per tenth of {arguments.reads} READs: {growth} bytes", flush=True)
            pulls.clear()
            process.stdin.close()
    late_s, grown = beside_s - alone_s, sum(growth)
    latest = f"{1e3 * beside_s:.1f} ms; {1e3 * bare_s:.1f} ms beside ib_read_bw"
    shown = f"{statistics.median(mine for mine, _ in speeds):.1f} MiB/s"
    report.add(
        [
            Row("rdma", "READs over ib_read_bw", None, shown, "", ratio, Bar(MIN_RATIO), {"mib_per_s": speeds}),
            Row(
                *("rdma", "latest beat beside READs, s more than alone", None, latest, f"{1e3 * alone_s:.1f} ms"),
                *(late_s, Bar(MAX_DELAY_S, at_most=True)),
            ),
            Row(
                *("rdma", f"growth over {arguments.reads} READs, bytes", None, str(growth), "", float(grown)),
                Bar(MAX_GROWTH_BYTES, at_most=True),
            ),
            Row("rdma", "registration of 16 MiB, s", None, f"{registration_s:.3f} s", "", registration_s),
        ]
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
