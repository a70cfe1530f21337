"""`chicle submit kubernetes`: the manifest of a run, printed for kubectl, or applied.

    chicle submit kubernetes --name a9a -j 2:8 --image REGISTRY/chicle --claim /data=datasets \\
        --train /data/a9a --out s3://bucket/a9a-model estimators.fit_task --C 0.1 | kubectl apply -f -

The output is JSON, which kubectl reads like YAML. It holds the job secret.
"""

import argparse
import json
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from chicle_elastic.errors import ChicleError, UsageError
from chicle_elastic.transports.secret import SECRET_BYTES
from torchx_components.kubernetes_manifest import KubernetesRun, manifests
from torchx_components.node import add_passed_on, check_task, is_script, parse_nodes, passed_on
from torchx_components.submission import FIT_TASK

KINDS = "job,service,secret,serviceaccount,role,rolebinding"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        run = run_of(arguments)
        print(apply(run) if arguments.apply else manifest_text(run), end="")
    except ChicleError as error:
        print(f"chicle submit kubernetes: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="chicle submit kubernetes", description=__doc__.split("\n\n")[0], allow_abbrev=False
    )
    parser.add_argument("--name", required=True, help="of the run; objects are called after it")
    parser.add_argument("-j", dest="nodes", required=True, help="MIN:MAX members, or N")
    parser.add_argument("--image", required=True, help="with Chicle in it")
    parser.add_argument("--train", help="chunk folder (chicle convert), as pods see it, or its URL; a script has none")
    parser.add_argument("--out", help="folder or URL for the model, as pods see it; a script has none")
    parser.add_argument("--namespace", default="default", help="default: %(default)s")
    parser.add_argument("--begin", type=int, help="members to begin with; default: MAX")
    parser.add_argument("--grace", type=float, default=25.0, help="seconds of a notice; default: %(default)s")
    parser.add_argument("--cpu", default="2", help="of a member; default: %(default)s")
    parser.add_argument("--memory", default="4Gi", help="of a member, chunks included; default: %(default)s")
    pairs: list[tuple[str, str]] = [
        ("--resource", "further resource of a member, e.g. nvidia.com/gpu=1 or that of an RDMA device plug-in"),
        ("--claim", "/FOLDER=NAME: a PersistentVolumeClaim, where pods see it"),
        ("--env", "NAME=VALUE, of anchor and members"),
        ("--member-selector", "LABEL=VALUE of machines for members"),
        ("--anchor-selector", "LABEL=VALUE of machines for the anchor, which should not be on spot"),
    ]
    for option, text in pairs:
        parser.add_argument(option, action="append", default=[], type=_pair, metavar="NAME=VALUE", help=text)
    parser.add_argument(
        "--burst-toleration", action="append", default=[], metavar="TAINT", help="KEY=VALUE:EFFECT or KEY:EFFECT"
    )
    parser.add_argument("--log-dir", default="/tmp/chicle", help="of members, for event files; default: %(default)s")
    parser.add_argument("--priority-class", help="of members beyond MIN")
    parser.add_argument("--queue", help="Kueue's queue of members beyond MIN, which are admitted one by one")
    parser.add_argument("--volcano", metavar="QUEUE", help="Volcano's queue of the members, which Volcano places then")
    add_passed_on(parser)
    parser.add_argument("--apply", action="store_true", help="hand the manifest to kubectl instead of printing it")
    parser.add_argument(
        "module",
        help="what the tasks run, by python -m; gets --train, --out and what follows it. Or a script in the image or "
        "on a claim, /FOLDER/NAME.py, which gets what follows it",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def run_of(arguments: argparse.Namespace) -> KubernetesRun:
    """What the command line says. Raises UsageError when it cannot be."""
    least, most = parse_nodes(arguments.nodes)
    task = [arguments.module, *arguments.arguments]
    if not is_script(arguments.module):
        missing = [f"--{name}" for name in ("train", "out") if not getattr(arguments, name)]
        if missing:
            raise UsageError(f"{' and '.join(missing)} missing: the module {arguments.module} gets them")
        claims = [folder for folder, _ in arguments.claim]
        if arguments.module == FIT_TASK and not any(Path(arguments.out).is_relative_to(folder) for folder in claims):
            raise UsageError(
                f"{arguments.out} is on no claim, and pods would not see it: TorchXRuntime(folder='/data/jobs', "
                "member_options=('--claim', '/data=NAME')) for a claim that this process has at /data too"
            )
        check_task(task, arguments.train, arguments.out)
        task[1:1] = ["--out", arguments.out]
    return KubernetesRun(
        name=arguments.name,
        image=arguments.image,
        least=least,
        most=most,
        begin=arguments.begin,
        secret=secrets.token_hex(SECRET_BYTES),
        task=task,
        train=arguments.train or "",
        namespace=arguments.namespace,
        grace_s=arguments.grace,
        node_options=passed_on(arguments),
        env=dict(arguments.env),
        cpu=arguments.cpu,
        memory=arguments.memory,
        extended={name: _count(name, value) for name, value in arguments.resource},
        claims=dict(arguments.claim),
        member_selector=dict(arguments.member_selector),
        anchor_selector=dict(arguments.anchor_selector),
        burst_tolerations=arguments.burst_toleration,
        priority_class=arguments.priority_class,
        queue=arguments.queue,
        volcano=arguments.volcano,
        log_dir=arguments.log_dir,
        state=arguments.out if arguments.module == FIT_TASK else None,
    )


def manifest_text(run: KubernetesRun) -> str:
    """Return the manifest of a run as kubectl reads it."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests(run)}, indent=2) + "\n"


def apply(run: KubernetesRun) -> str:
    """Hand the manifest of a run to kubectl; returns what it says. Raises UsageError when there is no kubectl, it
    refuses, or the cluster has no such queue."""
    for option, queue, kind in (
        ("--queue", run.queue, "localqueues.kueue.x-k8s.io"),
        ("--volcano", run.volcano, "queues.scheduling.volcano.sh"),
    ):
        if queue is not None:
            try:
                kubectl("get", kind, queue, "--namespace", run.namespace)
            except UsageError as error:
                if "Forbidden" not in str(error):  # who may not look at queues may use one
                    raise UsageError(
                        f"{option} {queue}: {error}; kubectl get {kind} -A lists those there are"
                    ) from None
    documents = "\n".join(json.dumps(each) for each in manifests(run))  # the server judges each by itself
    try:
        return kubectl("apply", "-f", "-", text=documents)
    except UsageError as error:
        advice = f"kubectl delete {KINDS} --namespace {run.namespace} -l chicle.run={run.name}"
        raise UsageError(f"{error}; what it has made is removed by {advice}") from None


def kubectl(*words: str, text: str | None = None) -> str:
    """Run kubectl, with a text to read; returns what it prints. Raises UsageError when there is none, or it refuses."""
    try:
        done = subprocess.run(["kubectl", *words], input=text or "", text=True, capture_output=True, check=False)
    except FileNotFoundError:
        raise UsageError(
            "there is no kubectl on this host; leave --apply out, and apply what is printed where there is one"
        ) from None
    if done.returncode:
        raise UsageError(f"kubectl refuses: {'; '.join(done.stderr.strip().splitlines()) or done.returncode}")
    return done.stdout


def _pair(text: str) -> tuple[str, str]:
    name, is_pair, value = text.partition("=")
    if not is_pair or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _count(name: str, value: str) -> int:
    if not value.isdecimal():
        raise UsageError(f"--resource {name}={value}: write a number")
    return int(value)
