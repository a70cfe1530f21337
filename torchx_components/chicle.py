"""Components: `torchx run -s local_cwd chicle.svm -j 2:3 --train a9a.svm --out model`.

    chicle.svm, chicle.logistic, chicle.cnn    fit an estimator; its parameters are options behind a --
    chicle.app                                 run a task of your own
    chicle.script                              run a training loop of your own (chicle_elastic.torch)
    chicle.join                                one more node for a run that goes on

Each submits one replica: the *anchor*, which prepares the data, serves the rendezvous store and starts the nodes, so
that every node comes and goes by itself. On Slurm the nodes are tasks of a job array; elsewhere processes of the host
of the anchor (`torchx_components.anchor`).
"""

# ruff: noqa: UP006, UP035, UP045  (TorchX 0.7.0 reads annotations of arguments, and knows no others)

import functools
import inspect
import os
from typing import Any, Callable, Dict, Optional

import torchx
import torchx.specs as specs

from torchx_components.anchor_app import component_of, role_of
from torchx_components.node import FIT, is_script, parse_nodes

NODE = "torchx_components.node"


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
    return component_of(locals(), [module, *task])


def _with_options(component: Callable[..., specs.AppDef]) -> Callable[..., specs.AppDef]:
    """Give a component that fits an estimator, or runs a script, the options of `app` behind its own arguments, with
    their description.

    TorchX's check of a file wants each component as a function there, and reads its options from the signature.
    """
    name, own = component.__name__, inspect.signature(component)
    options = [each for each in inspect.signature(app).parameters.values() if each.kind is each.KEYWORD_ONLY]
    options = [each.replace(default=f"chicle-{name}") if each.name == "name" else each for each in options]
    defaults = {each.name: each.default for each in options}

    @functools.wraps(component)
    def submit(*words: str, **given: Any) -> specs.AppDef:
        bound = own.bind(*words, **{each: given.pop(each) for each in own.parameters if each in given})
        bound.apply_defaults()
        told = bound.arguments
        if "script" not in told:
            return component_of({**defaults, **given, **told}, [FIT, "--estimator", name, *told["solver"]])
        if not is_script(told["script"]):
            raise ValueError(
                f"chicle.script runs a file, NAME.py, and not {told['script']!r}; chicle.app runs a module"
            )
        task = [os.path.abspath(told["script"]), *told["arguments"]]
        return component_of({**defaults, **given, "train": "", "out": told["out"]}, task)

    described = inspect.getdoc(app) or ""
    submit.__doc__ = f"{inspect.getdoc(component)}\n{described[described.index('    j: nodes') :]}"
    parameters = [*own.parameters.values(), *options]
    submit.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return submit


@_with_options
def svm(train: str, out: str, *solver: str) -> specs.AppDef:
    """Train a linear support vector machine (ChicleSVM) on nodes that may come and go.

    Writes OUT/model.npz (for ChicleSVM.load), and the event files and TensorBoard scalars of the nodes to OUT/nodes.

    Args:
        train: data file (svmlight, CSV, npy, npz, Parquet), or a folder that `chicle convert` made
        out: folder to write, which anchor and nodes have to see
        solver: options of the estimator after a --, e.g. -- --C 0.1 --loss squared_hinge
    """


@_with_options
def logistic(train: str, out: str, *solver: str) -> specs.AppDef:
    """Train logistic regression (ChicleLogisticRegression) on nodes that may come and go.

    Writes OUT/model.npz (for ChicleLogisticRegression.load), and the event files of the nodes to OUT/nodes.

    Args:
        train: data file (svmlight, CSV, npy, npz, Parquet), or a folder that `chicle convert` made
        out: folder to write, which anchor and nodes have to see
        solver: options of the estimator after a --, e.g. -- --C 0.1
    """


@_with_options
def cnn(train: str, out: str, *solver: str) -> specs.AppDef:
    """Train a small network on images (ChicleCNNClassifier) on nodes that may come and go.

    Writes OUT/model.npz (for ChicleCNNClassifier.load), and the event files of the nodes to OUT/nodes.

    Args:
        train: data file with an image per row (npy, npz, CSV, ...), or a folder that `chicle convert` made
        out: folder to write, which anchor and nodes have to see
        solver: options of the estimator after a --, e.g. -- --max_epochs 5 --module net:Net --module__width 32
    """


@_with_options
def script(script: str, *arguments: str, out: str = "chicle-run") -> specs.AppDef:
    """Run a script with a loop of chicle_elastic.torch on nodes that may come and go.

    Args:
        script: Python file that each node runs; every node has to see it
        arguments: of the script, after a --
        out: folder for what anchor and nodes write, which all of them have to see
    """


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
    role = role_of("node", [*arguments, task[0], *out, *task[1:]], locals())
    return specs.AppDef(name=name, roles=[role])
