"""What the verbs transport costs beside the bare cards: throughput, other threads, memory. Runs in the test machine.

    make bench-rdma        boots the machine with a clock that counts instructions, and runs this in it

Throughput: READs of 1 MiB into slots by `fetch_each`, against `ib_read_bw` (perftest, written in C) with messages of
the same size between the same two devices; both have the owner in a process of its own. Runs alternate, and the ratio
is the median of the ratios of neighbours. Threads: a thread that wants to wake up every 20 ms, beside transfers and
beside nothing; what counts is the latest wake-up. Beside `ib_read_bw` it shows how late the cards alone make it.
Memory: resident pages of this process, which is owner and reader, around 100,000 READs.

The model: 64 MiB of float64 that one task broadcasts to another, until that one has them, against the faster one of
`ib_write_bw`, which polls, and `ib_send_bw -e`; and a sum of 64 MiB of two tasks, against that by TCP over the same
wire, which is faster here: a processor that computes the CRC of each packet is no card.

The clock follows the instructions that the machine runs, so that the load of the host has no part in any figure. About
network cards the figures say nothing: Soft-RoCE computes every packet on the one processor that also runs this.

Exit code 1 when a bar is missed.
"""

import gc
import itertools
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.bars import Bar, Row
from benchmarks.report import Report, parser
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.runtime.collectives.socket_group import GroupNetwork
from chicle_elastic.store.arena import Arena
from chicle_elastic.transports.base import Pull, Region
from chicle_elastic.transports.key_values import KeyValueServer
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.verbs.transport import VerbsTransport

MIN_RATIO = 0.95
MIN_MODEL_RATIO = 0.9
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
MODEL_VALUES = 8 << 20
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


# The other task of a group of two; argv: port of the store, device, number of broadcasts and sums.
TASK = """
import sys
import numpy as np
from benchmarks.rdma import MODEL_VALUES, connected_group
group = connected_group(1, int(sys.argv[1]), sys.argv[2])
buffer = np.zeros(MODEL_VALUES)
for _ in range(int(sys.argv[3])):
    group.broadcast(buffer, root=0, to=[1])
    group.all_reduce(np.zeros(1))
    group.all_reduce(buffer)
group.close()
"""


def connected_group(rank: int, port: int, device: str) -> ProcessGroup:
    """A group of two, by TCP where `device` is ""; its sockets use the wire between the devices as well."""
    group = ProcessGroup(round=1, rank=rank, size=2)
    network = GroupNetwork.of(bind=HOSTS[rank], advertise=HOSTS[rank], key="ab" * 32, rdma=device)
    group.begin(("127.0.0.1", port), prefix="model/", network=network, timeout_s=TIMEOUT_S)
    group.connect()
    return group


def model_speeds(is_rdma: bool, num_times: int) -> tuple[list[float], list[float]]:
    """MiB/s of broadcasts and of sums."""
    listener = socket.create_server(("127.0.0.1", 0))
    server, port = KeyValueServer(listener), listener.getsockname()[1]
    devices = DEVICES if is_rdma else ("", "")
    broadcasts, sums, mib = [], [], 8 * MODEL_VALUES / 2**20
    with subprocess.Popen([sys.executable, "-c", TASK, str(port), devices[1], str(num_times)]) as process:
        group, buffer = connected_group(0, port, devices[0]), np.ones(MODEL_VALUES)
        for _ in range(num_times):
            begin = time.perf_counter()
            group.broadcast(buffer, root=0, to=[1])
            group.all_reduce(np.zeros(1))  # the other one has it
            broadcasts.append(mib / (time.perf_counter() - begin))
            begin = time.perf_counter()
            group.all_reduce(buffer)
            sums.append(mib / (time.perf_counter() - begin))
        group.close()
    server.close()
    if process.returncode:
        raise RuntimeError(f"the other task ended with {process.returncode}")
    return broadcasts, sums


def perftest(num_messages: int, tool: str = "ib_read_bw", *, polls: bool = False) -> float:
    """MiB/s of a tool of perftest, at its best: where it polls without a pause it keeps the processor from the cards,
    but `ib_write_bw` knows no events."""
    for _ in range(PERFTEST_TRIES):
        events = [] if polls else ["-e"]
        speed = _try_perftest([tool, *events, "-x", "1", "-s", str(SLOT_BYTES), "-n", str(num_messages), "-F"])
        if speed is not None:
            return speed
    raise RuntimeError(f"{tool} did not end in {PERFTEST_TRIES} tries")


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
            raise RuntimeError(f"{command[0]} said: {client.stdout} {client.stderr}")
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
    models = []
    for _ in range(arguments.rounds):
        alone = perftest(64, "ib_write_bw", polls=True), perftest(64, "ib_send_bw")
        models.append((*model_speeds(True, 2), *model_speeds(False, 2), alone))
        print("broadcasts, sums by RDMA; by TCP; ib_write_bw, ib_send_bw, MiB/s:", models[-1], flush=True)
    model_ratio = statistics.median(broadcasts[-1] / max(alone) for broadcasts, _, _, _, alone in models)
    sum_ratio = statistics.median(sums[-1] / by_tcp[-1] for _, sums, _, by_tcp, _ in models)
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
            Row(
                *("rdma", "64 MiB of a model over ib_write_bw or ib_send_bw", None),
                *(f"{statistics.median(model[0][-1] for model in models):.1f} MiB/s", "", model_ratio),
                *(Bar(MIN_MODEL_RATIO), {"mib_per_s": models}),
            ),
            Row(
                *("rdma", "sum of 64 MiB over that by TCP", None),
                *(f"{statistics.median(model[1][-1] for model in models):.1f} MiB/s", "", sum_ratio),
            ),
            Row("rdma", "registration of 16 MiB, s", None, f"{registration_s:.3f} s", "", registration_s),
        ]
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
