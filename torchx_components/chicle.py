"""Components: `torchx run -s local_cwd chicle.svm -j 2:3 --train a9a.svm --out model`.

The shape of every job (a scheduler may turn each role into a job of its own, which then comes and goes by itself):

    anchor      one replica that stays to the end: prepares the data, serves the rendezvous store, is no member
    node-0 ..   one replica each: an agent and its task; all join the same rendezvous, and any of them may go

Anchor and nodes meet in a folder of the run below `--out`, which all of them have to see.
"""

import os
import re
from collections.abc import Sequence

import torchx
import torchx.specs as specs

ANCHOR = "torchx_components.anchor"
NODE = "torchx_components.node"
SVM = "estimators.fit_task"


def svm(
    train: str,
    out: str,
    *solver: str,
    j: str = "1",
    name: str = "chicle-svm",
    image: str = torchx.IMAGE,
    python: str = "python",
    cpu: int = 2,
    memMB: int = 4096,
    grace: float = 25.0,
) -> specs.AppDef:
    """Train a linear support vector machine on nodes that may come and go.

    Writes OUT/model.npz (for ChicleSVM.load), and the event files and TensorBoard scalars of the nodes to OUT/nodes.

    Args:
        train: data file (svmlight, CSV, npy, npz, Parquet), or a folder that `chicle convert` made
        out: folder to write, which anchor and nodes have to see
        solver: options of the estimator after a --, e.g. -- --C 0.1 --loss squared_hinge
        j: nodes as MIN:MAX or N; with fewer than MIN it pauses
        name: name of the job
        image: image to use, where the scheduler has images
        python: interpreter on the nodes
        cpu: processors per node
        memMB: memory per node in MB
        grace: seconds from a notice until a node has to be gone
    """
    least, most = parse_nodes(j)
    out = os.path.abspath(out)
    run = os.path.join(out, f".run-{specs.macros.app_id}")
    data = os.path.abspath(train)
    resource = specs.Resource(cpu=cpu, gpu=0, memMB=memMB)

    def role(role_name: str, args: Sequence[str]) -> specs.Role:
        return specs.Role(
            name=role_name,
            image=image,
            entrypoint=python,
            args=["-m", *args],
            num_replicas=1,
            resource=resource,
            retry_policy=specs.RetryPolicy.REPLICA,
        )

    anchor = role("anchor", [ANCHOR, "--run", run, "--train", data, "--nodes", str(most)])
    common = [NODE, "--run", run, "--nnodes", f"{least}:{most}", "--grace", str(grace)]
    common += ["--log-dir", os.path.join(out, "nodes")]
    names = [f"node-{number}" for number in range(most)]
    nodes = [role(name, [*common, "--name", name, SVM, "--out", out, *solver]) for name in names]
    return specs.AppDef(name=name, roles=[anchor, *nodes])


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
