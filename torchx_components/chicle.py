"""Components: `torchx run -s local_cwd chicle.svm -j 2:3 --train a9a.svm --out model`.

    chicle.svm, chicle.logistic, chicle.cnn    fit an estimator; its parameters are options behind a --
    chicle.app                                 run a task of your own
    chicle.join                                one more node for a run that goes on

Each submits one replica: the *anchor*, which prepares the data, serves the rendezvous store and starts the nodes, so
that every node comes and goes by itself. On Slurm the nodes are tasks of a job array; elsewhere processes of the host
of the anchor (`torchx_components.anchor`).
"""

# ruff: noqa: UP006, UP035, UP045  (TorchX 0.7.0 reads annotations of arguments, and knows no others)

import os
import re
import shlex
from importlib import import_module
from typing import Dict, Optional

import torchx
import torchx.specs as specs

ANCHOR = "torchx_components.anchor"
NODE = "torchx_components.node"
FIT = "estimators.fit_task"


def svm(
    train: str,
    out: str,
    *solver: str,
    j: str = "1",
    checkpoint: str = "",
    resume: bool = False,
    grace: float = 25.0,
    begin: int = 0,
    member_options: str = "",
    env: Optional[Dict[str, str]] = None,
    name: str = "chicle-svm",
    image: str = torchx.IMAGE,
    python: str = "python",
    cpu: int = 2,
    memMB: int = 4096,
    gpu: int = 0,
) -> specs.AppDef:
    """Train a linear support vector machine (ChicleSVM) on nodes that may come and go.

    Writes OUT/model.npz (for ChicleSVM.load), and the event files and TensorBoard scalars of the nodes to OUT/nodes.

    Args:
        train: data file (svmlight, CSV, npy, npz, Parquet), or a folder that `chicle convert` made
        out: folder to write, which anchor and nodes have to see
        solver: options of the estimator after a --, e.g. -- --C 0.1 --loss squared_hinge
        j: nodes as MIN:MAX or N; with fewer than MIN it pauses
        checkpoint: folder that all nodes share, or URL, for periodic checkpoints
        resume: go on from the newest checkpoint, if there is one
        grace: seconds from a notice until a node has to be gone
        begin: nodes to begin with; 0 for MAX
        member_options: further options of the anchor, e.g. "--sbatch=--partition=spot --notices auto"
        env: environment of anchor and nodes, e.g. OMP_NUM_THREADS=8
        name: name of the job
        image: image to use, where the scheduler has images
        python: interpreter of anchor and nodes
        cpu: processors per node
        memMB: memory per node in MB
        gpu: GPUs per node
    """
    return _anchor(locals(), [FIT, "--estimator", "svm", *solver])


def logistic(
    train: str,
    out: str,
    *solver: str,
    j: str = "1",
    checkpoint: str = "",
    resume: bool = False,
    grace: float = 25.0,
    begin: int = 0,
    member_options: str = "",
    env: Optional[Dict[str, str]] = None,
    name: str = "chicle-logistic",
    image: str = torchx.IMAGE,
    python: str = "python",
    cpu: int = 2,
    memMB: int = 4096,
    gpu: int = 0,
) -> specs.AppDef:
    """Train logistic regression (ChicleLogisticRegression) on nodes that may come and go.

    Writes OUT/model.npz (for ChicleLogisticRegression.load), and the event files of the nodes to OUT/nodes.

    Args:
        train: data file (svmlight, CSV, npy, npz, Parquet), or a folder that `chicle convert` made
        out: folder to write, which anchor and nodes have to see
        solver: options of the estimator after a --, e.g. -- --C 0.1
        j: nodes as MIN:MAX or N; with fewer than MIN it pauses
        checkpoint: folder that all nodes share, or URL, for periodic checkpoints
        resume: go on from the newest checkpoint, if there is one
        grace: seconds from a notice until a node has to be gone
        begin: nodes to begin with; 0 for MAX
        member_options: further options of the anchor, e.g. "--sbatch=--partition=spot --notices auto"
        env: environment of anchor and nodes, e.g. OMP_NUM_THREADS=8
        name: name of the job
        image: image to use, where the scheduler has images
        python: interpreter of anchor and nodes
        cpu: processors per node
        memMB: memory per node in MB
        gpu: GPUs per node
    """
    return _anchor(locals(), [FIT, "--estimator", "logistic", *solver])


def cnn(
    train: str,
    out: str,
    *solver: str,
    j: str = "1",
    checkpoint: str = "",
    resume: bool = False,
    grace: float = 25.0,
    begin: int = 0,
    member_options: str = "",
    env: Optional[Dict[str, str]] = None,
    name: str = "chicle-cnn",
    image: str = torchx.IMAGE,
    python: str = "python",
    cpu: int = 2,
    memMB: int = 4096,
    gpu: int = 0,
) -> specs.AppDef:
    """Train a small network on images (ChicleCNNClassifier) on nodes that may come and go.

    Writes OUT/model.npz (for ChicleCNNClassifier.load), and the event files of the nodes to OUT/nodes.

    Args:
        train: data file with an image per row (npy, npz, CSV, ...), or a folder that `chicle convert` made
        out: folder to write, which anchor and nodes have to see
        solver: options of the estimator after a --, e.g. -- --max_epochs 5 --module net:Net --module__width 32
        j: nodes as MIN:MAX or N; with fewer than MIN it pauses
        checkpoint: folder that all nodes share, or URL, for periodic checkpoints
        resume: go on from the newest checkpoint, if there is one
        grace: seconds from a notice until a node has to be gone
        begin: nodes to begin with; 0 for MAX
        member_options: further options of the anchor, e.g. "--sbatch=--partition=spot --notices auto"
        env: environment of anchor and nodes, e.g. OMP_NUM_THREADS=8
        name: name of the job
        image: image to use, where the scheduler has images
        python: interpreter of anchor and nodes
        cpu: processors per node
        memMB: memory per node in MB
        gpu: GPUs per node
    """
    return _anchor(locals(), [FIT, "--estimator", "cnn", *solver])


def app(
    module: str,
    train: str,
    out: str,
    *task: str,
    j: str = "1",
    checkpoint: str = "",
    resume: bool = False,
    grace: float = 25.0,
    begin: int = 0,
    member_options: str = "",
    env: Optional[Dict[str, str]] = None,
    name: str = "chicle-app",
    image: str = torchx.IMAGE,
    python: str = "python",
    cpu: int = 2,
    memMB: int = 4096,
    gpu: int = 0,
) -> specs.AppDef:
    """Run tasks of your own: a module with a Job of your Trainer and Solver, which calls cluster_runtime().run(job).

    The module gets --train CHUNK_FOLDER, --out OUT, and what stands behind the --.

    Args:
        module: module that each node runs as `python -m`; every node has to be able to import it
        train: data file (svmlight, CSV, npy, npz, Parquet), or a folder that `chicle convert` made
        out: folder to write, which anchor and nodes have to see
        task: arguments of the module after a --
        j: nodes as MIN:MAX or N; with fewer than MIN it pauses
        checkpoint: folder that all nodes share, or URL, for periodic checkpoints
        resume: go on from the newest checkpoint, if there is one
        grace: seconds from a notice until a node has to be gone
        begin: nodes to begin with; 0 for MAX
        member_options: further options of the anchor, e.g. "--sbatch=--partition=spot --notices auto"
        env: environment of anchor and nodes, e.g. OMP_NUM_THREADS=8
        name: name of the job
        image: image to use, where the scheduler has images
        python: interpreter of anchor and nodes
        cpu: processors per node
        memMB: memory per node in MB
        gpu: GPUs per node
    """
    return _anchor(locals(), [module, *task])


def join(
    run: str,
    *task: str,
    node: str = f"joiner-{specs.macros.app_id}",
    j: str = "1:1024",
    grace: float = 25.0,
    env: Optional[Dict[str, str]] = None,
    name: str = "chicle-join",
    image: str = torchx.IMAGE,
    python: str = "python",
    cpu: int = 2,
    memMB: int = 4096,
    gpu: int = 0,
) -> specs.AppDef:
    """One more node for a run that goes on: what the anchor has started keeps running.

    Args:
        run: folder of the run, which the anchor prints; this node has to see it
        task: after a --, the module of the run's tasks and its arguments, as the other nodes have them
        node: name of the node, unique in the run
        j: nodes as MIN:MAX, as the anchor has it
        grace: seconds from a notice until the node has to be gone
        env: environment of the node
        name: name of the job
        image: image to use, where the scheduler has images
        python: interpreter of the node
        cpu: processors
        memMB: memory in MB
        gpu: GPUs
    """
    if not task:
        raise ValueError("chicle.join needs the module of the run's tasks after a --, e.g. -- estimators.fit_task")
    run = os.path.abspath(run)
    least, most = parse_nodes(j)
    arguments = [NODE, "--run", run, "--nnodes", f"{least}:{most}", "--name", node, "--grace", str(grace)]
    arguments += ["--log-dir", os.path.join(os.path.dirname(run), "nodes")]
    out = [] if "--out" in task else ["--out", os.path.dirname(run)]
    role = _role("node", [*arguments, task[0], *out, *task[1:]], locals())
    return specs.AppDef(name=name, roles=[role])


def parse_nodes(j: str) -> tuple[int, int]:
    """Fewest and most nodes of "2:3", "3", or TorchX's own "2:3x1" and "3x1".

    Args:
        j: as on the command line

    Raises:
        ValueError: it says something else, or several processes per node
    """
    match = re.fullmatch(r"(?:(\d+):)?(\d+)(?:x1)?", j)
    least, most = (int(match[1] or match[2]), int(match[2])) if match else (0, 0)
    if not 1 <= least <= most:
        raise ValueError(f"-j {j}: write MIN:MAX or N, e.g. 2:3; a node runs one task, which uses all its processors")
    return least, most


def _anchor(given: dict[str, object], task: list[str]) -> specs.AppDef:
    """The job of a component.

    Args:
        given: Its arguments, by name.
        task: The module of the tasks, and its arguments.
    """
    least, most = parse_nodes(str(given["j"]))
    check_task(task, str(given["train"]), str(given["out"]))
    arguments = [ANCHOR, "-j", f"{least}:{most}", "--train", os.path.abspath(str(given["train"]))]
    arguments += ["--out", os.path.abspath(str(given["out"])), "--grace", str(given["grace"])]
    arguments += ["--python", str(given["python"])]
    arguments += ["--begin", str(given["begin"])] if given["begin"] else []
    arguments += ["--checkpoint", str(given["checkpoint"])] if given["checkpoint"] else []
    arguments += ["--resume"] if given["resume"] else []
    arguments += [f"--sbatch=--cpus-per-task={given['cpu']}", f"--sbatch=--mem={given['memMB']}"]
    arguments += [f"--sbatch=--gpus-per-node={given['gpu']}"] if given["gpu"] else []
    arguments += shlex.split(str(given["member_options"]))  # later ones win
    return specs.AppDef(name=str(given["name"]), roles=[_role("anchor", [*arguments, *task], given)])


def check_task(task: list[str], train: str, out: str) -> None:
    """Refuse options of an estimator that cannot be, here and now and not on every node later.

    Args:
        task: the module of the tasks, and its arguments
        train: data
        out: folder to write
    """
    if task[0] == FIT:
        # By its name, as nodes run it: this package does not build on estimators.
        import_module(FIT).parse(["--train", train, "--out", out, *task[1:]])


def _role(role_name: str, args: list[str], given: dict[str, object]) -> specs.Role:
    def number(name: str) -> int:
        return int(str(given[name]))

    return specs.Role(
        name=role_name,
        image=str(given["image"]),
        entrypoint=str(given["python"]),
        args=["-m", *args],
        env=dict(given["env"] or {}),  # type: ignore[call-overload]
        num_replicas=1,
        resource=specs.Resource(cpu=number("cpu"), gpu=number("gpu"), memMB=number("memMB")),
        retry_policy=specs.RetryPolicy.REPLICA,
    )
