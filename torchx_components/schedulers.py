"""TorchX's schedulers `chicle_slurm` and `chicle_kubernetes`: they start components of Chicle as elastic jobs.

    torchx run -s chicle_slurm -cfg partition=main,backfill=true chicle.script -j 1:16 --script train.py
    torchx run -s chicle_kubernetes -cfg namespace=lab,queue=team chicle.svm -j 2:8 --image ... --train ... --out ...

An application is the anchor of a job (`anchor_app`). On Slurm it is a batch job, whose members are a job array; on
Kubernetes it is what `chicle submit kubernetes` makes of the same options. How it stands is asked of scontrol and of
kubectl: Slurm needs no slurmdbd, as long as it remembers the job (MinJobAge).
"""

import argparse
import json
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torchx
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, filter_regex, split_lines_iterator
from torchx.schedulers.ids import make_unique
from torchx.schedulers.local_scheduler import LogIterator
from torchx.schedulers.slurm_scheduler import SLURM_STATES
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, macros, runopts

from chicle_elastic.errors import UsageError
from torchx_components import anchor, submit_kubernetes
from torchx_components.anchor_app import ANCHOR
from torchx_components.kubernetes_manifest import ROLE_LABEL, RUN_LABEL
from torchx_components.slurm import run_program, shown

COMMENT = "chicle-anchor"  # of the batch job of an anchor, by which `torchx list` knows it
NOT_OF_PODS = ("--python", "--sbatch")  # the image has the one, and resources of the pods stand for the other
# COMPLETING is the end of a job that still has processes
STATES_OF_SLURM = {**SLURM_STATES, "COMPLETING": AppState.RUNNING, "CONFIGURING": AppState.PENDING}

States = dict[str, tuple[AppState, str]]
"""State of each application, and what the scheduler says of it."""


class AnchorScheduler(Scheduler):
    """Says how the anchors of a scheduler stand."""

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return how an application stands; None where the scheduler does not know it, or no more."""
        if (found := self._states(app_id).get(app_id)) is None:
            return None
        state, said = found
        status = RoleStatus("anchor", [ReplicaStatus(id=0, role="anchor", state=state, hostname="")])
        roles = [Role("anchor", image="", num_replicas=1)]
        return DescribeAppResponse(app_id, state, msg=said, roles=roles, roles_statuses=[status])

    def list(self, cfg: object = None) -> list[ListAppResponse]:
        """Return the applications that the scheduler knows; TorchX's nightly passes options, of which none count."""
        return [ListAppResponse(app_id, state) for app_id, (state, _) in self._states().items()]

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: object = None,
        until: object = None,
        should_tail: bool = False,
        streams: object = None,
    ) -> Iterable[str]:
        """Yield what the anchor prints; `chicle logs OUT` and kubectl show the members."""
        return filter_regex(regex or "", self._lines(app_id, should_tail))

    def _states(self, app_id: str | None = None) -> States:
        raise NotImplementedError

    def _lines(self, app_id: str, should_tail: bool) -> Iterable[str]:
        raise NotImplementedError

    def _role(self, app: AppDef) -> Role:
        for role in app.roles:
            if role.args[:2] == ["-m", ANCHOR]:
                return role
        raise UsageError(
            f"{self.backend} starts chicle.app, cnn, logistic, script and svm, and {app.name} is none of them; "
            f"submit it by {self.backend.removeprefix('chicle_')}"
        )


class ChicleSlurm(AnchorScheduler):
    """Submits the anchor as a batch job, which submits the members as a job array."""

    def run_opts(self) -> runopts:
        """Return the options of `-cfg`."""
        options = runopts()
        options.add("partition", str, "of the anchor, which trains nothing and should stay")
        options.add("time", str, "limit of the anchor, as of sbatch")
        options.add("sbatch", str, "further options of sbatch for the anchor, e.g. '--account lab --qos long'")
        options.add("member_partition", str, "of the members; default: Slurm's own, the lowest with backfill")
        options.add("backfill", bool, "members are whole idle nodes, which others take back", default=False)
        return options

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo:
        role = self._role(app)
        words = ["--members", "slurm", *(["--backfill"] if cfg.get("backfill") else [])]
        words += ["--partition", cfg["member_partition"]] if cfg.get("member_partition") else []
        words += role.args[2:]
        command = ["sbatch", "--parsable", f"--job-name={app.name}", f"--comment={COMMENT}", "--no-requeue"]
        command += ["--nodes=1", "--ntasks=1", "--output=slurm-%j-anchor-0.out"]
        command += [f"--mem={role.resource.memMB}"] if role.resource.memMB > 0 else []
        command += [f"--{name}={cfg[name]}" for name in ("partition", "time") if cfg.get(name)]
        command += shlex.split(cfg.get("sbatch") or "")
        variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(role.env.items()))
        script = f"#!/bin/bash\n{variables}exec {shlex.join([role.entrypoint, *role.args[:2], *words])}\n"
        script = script.replace(macros.app_id, "'\"$SLURM_JOB_ID\"'")  # it is in single quotes
        try:
            request = command, script, anchor.parser().parse_args(words)
        except SystemExit:  # it has said why
            raise UsageError(f"the options of the anchor are those of python -m {ANCHOR} --help") from None
        return AppDryRunInfo(request, lambda request: f"{shlex.join(request[0])} <<'END'\n{request[1]}END")

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        """Submit it; returns Slurm's number. Raises UsageError when Slurm refuses it, or has no such partition for the
        members, PeerLostError when there is no Slurm here."""
        command, script, told = dryrun_info.request
        try:
            anchor.member_partition(told)
        except UsageError as error:
            raise UsageError(f"-cfg member_partition, backfill: {error}") from None
        with tempfile.NamedTemporaryFile("w", prefix="chicle-", suffix=".sh") as file:
            file.write(script)
            file.flush()
            return run_program(*command, file.name).strip().partition(";")[0]

    def _states(self, app_id: str | None = None) -> States:
        jobs = [job for job in shown("job", *([app_id] if app_id else [])) if app_id or job.get("Comment") == COMMENT]
        return {job["JobId"]: (STATES_OF_SLURM.get(job["JobState"], AppState.UNKNOWN), job["JobState"]) for job in jobs}

    def _cancel_existing(self, app_id: str) -> None:
        run_program("scancel", app_id)

    def _lines(self, app_id: str, should_tail: bool) -> Iterable[str]:
        found = shown("job", app_id)
        path = found[0]["StdOut"] if found else f"slurm-{app_id}-anchor-0.out"
        if should_tail:
            return split_lines_iterator(LogIterator(app_id, path, self))
        try:
            return Path(path).read_text(errors="replace").splitlines(keepends=True)
        except FileNotFoundError:
            raise UsageError(f"there is no {path}: the anchor has not begun, or was submitted elsewhere") from None


class ChicleKubernetes(AnchorScheduler):
    """Applies the manifest of a run by kubectl; an application is called "NAMESPACE:RUN"."""

    def run_opts(self) -> runopts:
        """Return the options of `-cfg`; all others of chicle submit kubernetes are member_options of the component."""
        options = runopts()
        options.add("image", str, "with Chicle in it; default: that of the component (--image)")
        options.add("namespace", str, "of all objects", default="default")
        options.add("queue", str, "Kueue's queue of members beyond MIN, which are admitted one by one")
        options.add("volcano", str, "Volcano's queue of the members, which Volcano places then")
        return options

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo:
        role, name = self._role(app), make_unique(app.name)
        image = cfg.get("image") or role.image
        if image == torchx.IMAGE or Path(image).is_absolute():
            raise UsageError("chicle_kubernetes needs an image with Chicle in it: --image NAME, or -cfg image=NAME")
        words = ["--name", name, "--image", image]
        words += ["--cpu", str(role.resource.cpu), "--memory", f"{role.resource.memMB}Mi"]
        words += ["--resource", f"nvidia.com/gpu={role.resource.gpu}"] if role.resource.gpu > 0 else []
        for variable, value in role.env.items():
            words += ["--env", f"{variable}={value.replace(macros.app_id, name)}"]
        for option in ("namespace", "queue", "volcano"):
            words += [f"--{option}", cfg[option]] if cfg.get(option) else []
        parser = submit_kubernetes.parser()
        for option in NOT_OF_PODS:
            parser.add_argument(option, action="append", help=argparse.SUPPRESS)
        try:
            told = parser.parse_args([*words, *role.args[2:]])
        except SystemExit:  # it has said why
            raise UsageError("chicle_kubernetes: member_options are those of chicle submit kubernetes --help") from None
        return AppDryRunInfo(submit_kubernetes.run_of(told), submit_kubernetes.manifest_text)

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        """Apply it; returns "NAMESPACE:RUN". Raises UsageError when kubectl refuses it, is not there, or the cluster
        has no such queue."""
        run = dryrun_info.request
        submit_kubernetes.apply(run)
        return f"{run.namespace}:{run.name}"

    def _states(self, app_id: str | None = None) -> States:
        words = ["--all-namespaces", "-l", f"{ROLE_LABEL}=anchor"]
        if app_id:
            namespace, _, name = app_id.partition(":")
            words = ["--namespace", namespace, "-l", f"{ROLE_LABEL}=anchor,{RUN_LABEL}={name}"]
        found = json.loads(submit_kubernetes.kubectl("get", "jobs", "-o", "json", *words))
        metadata = [job["metadata"] for job in found["items"]]
        names = [f"{each['namespace']}:{each['labels'][RUN_LABEL]}" for each in metadata]
        return dict(zip(names, map(_state, found["items"]), strict=True))

    def _cancel_existing(self, app_id: str) -> None:
        namespace, _, name = app_id.partition(":")
        words = ["--namespace", namespace, "-l", f"{RUN_LABEL}={name}", "--wait=false"]
        submit_kubernetes.kubectl("delete", submit_kubernetes.KINDS, *words)

    def _lines(self, app_id: str, should_tail: bool) -> Iterable[str]:
        namespace, _, name = app_id.partition(":")
        words = ["--namespace", namespace, f"job/{name}-anchor", *(["-f"] if should_tail else [])]
        with subprocess.Popen(["kubectl", "logs", *words], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield from process.stdout


def _state(job: Mapping[str, Any]) -> tuple[AppState, str]:
    status = job.get("status", {})
    for condition in status.get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            state = AppState.SUCCEEDED if condition["type"] == "Complete" else AppState.FAILED
            return state, condition.get("message") or condition["type"]
    state = AppState.RUNNING if status.get("ready", status.get("active")) else AppState.PENDING
    return state, state.name.lower()


def slurm(session_name: str, **_: object) -> ChicleSlurm:
    """Make TorchX's scheduler "chicle_slurm"."""
    return ChicleSlurm("chicle_slurm", session_name)


def kubernetes(session_name: str, **_: object) -> ChicleKubernetes:
    """Make TorchX's scheduler "chicle_kubernetes"."""
    return ChicleKubernetes("chicle_kubernetes", session_name)
