"""What the nodes of both sides run in the benchmark of loops: a network of the chosen size with Adam.

    chicle    the loop of chicle_elastic.torch
    stock     DDP under torchrun, with a checkpoint every so many steps, as PyTorch's own tutorial has it
    torchft   DDP of torchft, replica groups of one process, as its own examples have it
    in_place  a group that PyTorch (2.14 on, experimental) reconfigures in place, with what it leaves to its user

All but torchft take the same samples of an epoch in the same global batches; torchft drops the batches of a step that
fails, which are written down as steps -1. After each step a process appends the end of the step
to the laps of its node, and to NODE.steps the number of the step, its end, and the processor seconds of the process and
its agent until then.
"""

import argparse
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from elastic_laps import LapWriter  # type: ignore[import-not-found]  # started by its path: no package is imported

NUM_FEATURES, NUM_CLASSES, NUM_SAMPLES = 256, 10, 8192
BATCH = 64
CHECKPOINT_EVERY = 10
SILENT_S = 3.0
GROUPS = 4  # of torchft, at most


def network(num_parameters: int) -> nn.Module:
    """A perceptron of about so many parameters."""
    width = int((num_parameters / 2) ** 0.5)
    return nn.Sequential(
        *(nn.Linear(NUM_FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, NUM_CLASSES)),
    )


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and classes, always the same."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator)
    return x, (x[:, :NUM_CLASSES]).argmax(1)


class Steps:
    """Takes down the steps of a node."""

    def __init__(self, folder: Path, node: str) -> None:
        self._laps = LapWriter(folder / f"{node}.laps")
        self._file = (folder / f"{node}.steps").open("a", buffering=1)

    def ended(self, step: int, members: int) -> None:
        """A step has ended now."""
        self._laps.ended(members)
        self._file.write(f"{step} {time.perf_counter():.6f} {time.process_time() + cpu_s_of(os.getppid()):.6f}\n")

    def dropped(self) -> None:
        """The samples of a step are lost."""
        self._file.write(f"-1 {time.perf_counter():.6f} 0\n")


def cpu_s_of(pid: int) -> float:
    """Processor seconds of a process so far, which is the agent of this one."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def chicle(options: argparse.Namespace) -> None:
    """Train until the process is killed."""
    import chicle_elastic.torch as elastic

    model = network(options.parameters)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps = Steps(options.folder, options.node)
    with elastic.loop(model, optimizer, data(), batch_size=options.batch) as loop:
        for batch in loop.epochs(1_000_000):
            begun, step = time.perf_counter(), loop.position.step
            loss = functional.cross_entropy(model(batch.x), batch.y)
            time.sleep(max(0.0, begun + options.step_ms / 1e3 - time.perf_counter()))
            if loop.step(loss) is not None:
                steps.ended(step, len(loop.members))
            if options.num_steps and loop.position.step >= options.num_steps:
                loop.stop()


def stock(options: argparse.Namespace) -> None:
    """Do the same by DDP; torchrun kills and starts this process at each change."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    # What the first step imports takes seconds, more than the shortest time-out: every round would end with it.
    first = nn.Linear(1, 1)
    first(torch.ones(1, 1)).sum().backward()
    torch.optim.Adam(first.parameters()).step()
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    group = dist.new_group(timeout=timedelta(seconds=SILENT_S))
    model = network(options.parameters)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    path, epoch, done, step = options.folder / "checkpoint.pt", 0, 0, 0
    if path.exists():
        saved: dict[str, Any] = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epoch, done, step = saved["epoch"], saved["done"], saved["step"]
    node = options.node if options.node != "rank" else f"rank{dist.get_rank()}"
    wrapped = DistributedDataParallel(model, process_group=group)
    dataset, size = TensorDataset(*data()), dist.get_world_size()
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=0, drop_last=True)
    loader = DataLoader(dataset, batch_size=options.batch // size, sampler=sampler, drop_last=True)
    steps = Steps(options.folder, node)
    while True:
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            if number < done:
                continue
            begun = time.perf_counter()
            loss = functional.cross_entropy(wrapped(x), y)
            time.sleep(max(0.0, begun + options.step_ms / 1e3 - time.perf_counter()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step, done = step + 1, number + 1
            steps.ended(step - 1, size)
            if dist.get_rank() == 0 and step % options.checkpoint_every == 0:
                partial = path.with_suffix(".partial")
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "epoch": epoch, "done": done, "step": step}, partial)
                os.replace(partial, path)
            if options.num_steps and step >= options.num_steps:
                dist.destroy_process_group()
                return
        epoch, done = epoch + 1, 0


def torchft(options: argparse.Namespace) -> None:
    """Do the same by torchft; a process that ends is not started again."""
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset
    from torchft import (  # type: ignore[import-not-found]  # where the benchmark is told to find it
        DistributedDataParallel,
        DistributedSampler,
        Manager,
        Optimizer,
        ProcessGroupGloo,
    )

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = network(options.parameters)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    silent = timedelta(seconds=SILENT_S)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=silent),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": adam.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=options.node,
        hostname="127.0.0.1",
        timeout=silent,
    )
    wrapped, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, adam)
    number, dataset = int(options.node[1:]), TensorDataset(*data())
    sampler = DistributedSampler(
        dataset, replica_rank=number % GROUPS, num_replica_groups=GROUPS, group_rank=0, num_replicas=1, seed=0
    )
    loader = DataLoader(dataset, batch_size=options.batch // GROUPS, sampler=sampler, drop_last=True)
    steps, is_noticed = Steps(options.folder, options.node), []
    signal.signal(signal.SIGTERM, lambda *_: is_noticed.append(True))
    for epoch in range(1_000_000):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            step = manager.current_step()
            functional.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
            if manager.current_step() > step:
                steps.ended(manager.current_step() - 1, manager.num_participants())
            else:
                steps.dropped()
            if is_noticed:
                manager.shutdown(wait=False)
                return


def in_place(options: argparse.Namespace) -> None:
    """Do the same by hand: a sum of gradients, and the state from who is furthest to all others of a new group. The
    benchmark says who its members are (`loop.Members`)."""
    import torch.distributed as dist

    host, _, port = os.environ["MEMBERS"].rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(minutes=2))
    model, (x, y) = network(options.parameters), data()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    functional.cross_entropy(model(x[:1]), y[:1]).backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()  # makes the state, and changes nothing
    tensors = [*model.parameters(), *(value for of in optimizer.state.values() for value in of.values())]
    silent = timedelta(seconds=SILENT_S)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("group", store),
        rank=int(options.node[1:]),
        world_size=1000,
        timeout=silent,
        enable_reconfigure=True,  # type: ignore[call-arg]  # of a newer torch
    )
    steps, done, round, rank, size = Steps(options.folder, options.node), 0, 0, 0, 0
    signal.signal(signal.SIGTERM, lambda *_: store.set(f"leaves/{options.node}", ""))

    def meet() -> bool:
        """Form the newest group that this node is in. Returns False where it has been left out."""
        nonlocal done, round, rank, size
        while (newest := int(store.get("round"))) == round:
            time.sleep(0.002)
        was, round = round, newest
        names = json.loads(store.get(f"members/{round}"))
        if options.node not in names:
            return not was and meet()
        store.set(f"handle/{round}/{options.node}", dist._get_reconfigure_handle())  # type: ignore[attr-defined]
        handles = [store.get(f"handle/{round}/{name}").decode() for name in names]
        # Those that were in a sum with a dead node come when it has timed out.
        formed = dist._reconfigure(uuid=round, handles=handles, timeout=3 * silent)  # type: ignore[attr-defined]
        formed.wait()
        rank, size = names.index(options.node), len(names)
        each = [torch.zeros(1, dtype=torch.int64) for _ in names]
        dist.all_gather(each, torch.tensor([done]))
        furthest = max(range(size), key=lambda rank: int(each[rank]))
        if any(int(count) != int(each[furthest]) for count in each):
            with torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor, furthest)
            done = int(each[furthest])
        return True

    store.set(f"ready/{options.node}", "")
    per_epoch, is_in = NUM_SAMPLES // options.batch, meet()
    while is_in:
        try:
            epoch, number = divmod(done, per_epoch)
            order = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(epoch))
            mine = order[number * options.batch :][: options.batch].tensor_split(size)[rank]
            optimizer.zero_grad()
            (functional.cross_entropy(model(x[mine]), y[mine], reduction="sum") / options.batch).backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            is_new = torch.tensor([float(int(store.get("round")) > round)])
            total = torch.cat([*(gradient.reshape(-1) for gradient in gradients), is_new])
            dist.all_reduce(total)
            for gradient, part in zip(gradients, total.split([g.numel() for g in gradients] + [1]), strict=False):
                gradient.copy_(part.view_as(gradient))
            optimizer.step()
            done += 1
            steps.ended(done - 1, size)
            is_in = meet() if total[-1] else True
        except RuntimeError as error:
            print(error, flush=True)
            steps.dropped()
            is_in = meet()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("chicle", "stock", "torchft", "in_place"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("node")
    parser.add_argument("--parameters", type=int, default=5_000_000)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--step-ms", type=float, default=0.0, help="shortest time of the forward pass")
    parser.add_argument("--num-steps", type=int, default=0, help="end after so many steps")
    parser.add_argument("--checkpoint-every", type=int, default=CHECKPOINT_EVERY)
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"chicle": chicle, "stock": stock, "torchft": torchft, "in_place": in_place}[options.side](options)


if __name__ == "__main__":
    main()
