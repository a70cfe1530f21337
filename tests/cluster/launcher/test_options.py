"""The launcher's command line: torchrun's options and ours, and what cannot work."""

import os
import sys
from pathlib import Path

import pytest

from chicle_elastic.cluster import options as launch_args
from chicle_elastic.cluster.options import AgentCommand, StoreCommand, from_json, parse, to_json
from chicle_elastic.cluster.rendezvous.own_address import AddressOptions
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.transports.addresses import PortRange
from tests.programs import run_python

ENOUGH = ["--rdzv-endpoint", "driver:29400", "--secret-file", "job.secret"]


def agent(*argv: str) -> AgentCommand:
    """Parse the command line of a node."""
    command = parse([*ENOUGH, *argv], environ={})
    assert isinstance(command, AgentCommand)
    return command


def test_options_of_torchrun_mean_what_they_mean_there() -> None:
    """They are parsed by torchrun's own parser; what its defaults would break is set."""
    arguments = agent("--nnodes", "2:8", "--rdzv-id", "run7", "--max-restarts", "5", "-m", "train", "--epochs", "3")
    found = (arguments.min_nodes, arguments.max_nodes, arguments.run_id, arguments.max_restarts)
    assert found == (2, 8, "run7", 5)
    assert arguments.task.command == (sys.executable, "-u", "-m", "train", "--epochs", "3")
    arguments = agent("train.py", "--store-only")  # behind the script it is the script's
    assert (arguments.run_id, arguments.task.command[2:]) == ("chicle", ("train.py", "--store-only"))
    assert arguments.max_restarts > 0


FOLDER = Path("folder").absolute()
SAVED = {"checkpoint": CheckpointSettings(folder=str(FOLDER))}
OPTIONS: dict[str, dict[str, object]] = {
    "--name rack1-n2 --grace 4.5": {"node": "rack1-n2", "grace_s": 4.5},
    "--memory 1.5GiB --log-dir folder": {"memory_bytes": 3 << 29, "log_dir": FOLDER},
    "": {
        **{"metrics": None, "tls": None, "has_tls_bulk": False, "checkpoint": None, "wants_resume": False},
        "secret_file": Path("job.secret").absolute(),
    },
    # On this host alone, unless an address is given.
    "--metrics 9464": {"metrics": ("127.0.0.1", 9464)},
    "--metrics 0.0.0.0:9464": {"metrics": ("0.0.0.0", 9464)},
    "--tls folder --tls-bulk": {"tls": FOLDER, "has_tls_bulk": True},
    "--host 0.0.0.0 --advertise 10.0.0.7 --port-range 29410-29449": {
        "address": AddressOptions(host="0.0.0.0", advertise="10.0.0.7", ports=PortRange(29410, 29449))
    },
    "--local-addr 10.0.0.8": {"address": AddressOptions(advertise="10.0.0.8")},  # torchrun's name of --advertise
    "--interface eth1 --bulk-interface ib0": {"address": AddressOptions(interface="eth1", bulk="ib0")},
    "--checkpoint folder": SAVED,  # once a minute
    "--checkpoint folder --resume": {**SAVED, "wants_resume": True},
    "--checkpoint folder --checkpoint-every 100": {
        "checkpoint": CheckpointSettings(folder=str(FOLDER), every_iterations=100)
    },
    "--checkpoint folder --checkpoint-every 2.5s": {"checkpoint": CheckpointSettings(folder=str(FOLDER), every_s=2.5)},
    "--checkpoint s3://bucket/job/": {"checkpoint": CheckpointSettings(folder="s3://bucket/job")},
}


@pytest.mark.parametrize("argv", OPTIONS)
def test_our_options_become_the_options_of_the_node(argv: str) -> None:
    """Sizes in the units that people use, paths as the node finds them from any folder."""
    command = agent(*argv.split(), "train.py", "words that are no UTF-8: \udcff")
    options = command.options
    assert from_json(to_json(command)) == command, "it reaches an agent that has no torch"
    assert {name: getattr(options, name) for name in OPTIONS[argv]} == OPTIONS[argv]


def test_a_store_alone_needs_no_script() -> None:
    """It has an address and ports of its own."""
    assert parse([*ENOUGH, "--store-only"], environ={}) == StoreCommand(
        endpoint="driver:29400", secret_file=Path("job.secret")
    )
    command = parse([*ENOUGH, "--store-only", "--host", "::", "--port-range", "29400-29409"], environ={})
    assert isinstance(command, StoreCommand)
    assert from_json(to_json(command)) == command
    assert command.address == AddressOptions(host="::", ports=PortRange(29400, 29409))


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"CHICLE_SECRET": "ab" * 32, "CHICLE_SECRET_FILE": "other.secret"}, None),
        ({"CHICLE_SECRET_FILE": "/run/secrets/job"}, Path("/run/secrets/job")),
    ],
)
def test_the_secret_may_come_from_the_environment(environ: dict[str, str], named: Path | None) -> None:
    """Itself, or the name of its file; an argument wins over both, and no option shows its content."""
    command = parse(["--rdzv-endpoint", "driver:29400", "train.py"], environ=environ)
    assert isinstance(command, AgentCommand)
    assert command.options.secret_file == named
    assert "abab" not in repr(command)
    both = parse([*ENOUGH, "train.py"], environ=environ)
    assert isinstance(both, AgentCommand)
    assert both.options.secret_file == Path("job.secret").absolute()


def test_names_of_nodes_differ_by_default() -> None:
    """Several agents of one host must not have one name."""
    assert str(os.getpid()) in agent("train.py").options.node


def test_a_task_is_bound_to_the_processors_that_torch_chooses() -> None:
    """torch says so by binding a process; without a GPU it leaves the process where this one may run."""
    words = "from chicle_elastic.cluster.task_options import bound_command; print(*bound_command(None))"
    processors = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    assert run_python("-c", words).stdout.split() == ["numactl", f"--physcpubind={processors}"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([*ENOUGH, "--nproc-per-node", "2", "train.py"], "a node runs exactly one task"),
        ([*ENOUGH, "--nproc-per-node", "gpu", "train.py"], "a node runs exactly one task"),
        ([*ENOUGH, "--checkpoint-every", "10", "train.py"], "give --checkpoint FOLDER as well"),
        ([*ENOUGH, "--checkpoint", "memory://job", "train.py"], "each process has a place of its own there"),
        (["--secret-file", "job.secret", "train.py"], "no rendezvous store: give --rdzv-endpoint"),
        (
            ["--rdzv-endpoint", "driver:1", "train.py"],
            "no job secret: give --secret-file PATH or set CHICLE",
        ),
        ([*ENOUGH, "--rdzv-backend", "c10d", "train.py"], "--rdzv-backend c10d"),
        ([*ENOUGH, "--standalone", "train.py"], "--standalone runs the rendezvous store in a node"),
        ([*ENOUGH, "--nnodes", "8:2", "train.py"], "--nnodes 8:2 is neither"),
        ([*ENOUGH, "--nnodes", "0", "train.py"], "--nnodes 0 is neither"),
        ([*ENOUGH, "--nnodes", "1:2:3", "train.py"], "--nnodes 1:2:3 is neither"),
        ([*ENOUGH, "--nnodes", "many", "train.py"], "--nnodes many is neither"),
        ([*ENOUGH, "--name", "a/b", "train.py"], "is not a valid node name"),
        (["--rdzv-endpoint", "driver:port", "--secret-file", "s", "train.py"], "is not HOST:PORT"),
        ([*ENOUGH, "--store-only", "train.py"], "--store-only runs no script"),
        ([*ENOUGH, "--tls-bulk", "train.py"], "--tls-bulk needs the certificates of --tls FOLDER"),
        ([*ENOUGH, "--interface", "eth0", "--host", "::", "train.py"], "leave"),
        ([*ENOUGH, "--local-addr", "a", "--advertise", "b", "train.py"], "leave"),
        # Of torch's own checks.
        ([*ENOUGH, "--max-restarts", "-1", "train.py"], "max_restarts must be >= 0"),
        ([*ENOUGH, "--no-python", "-m", "train"], "Don't use both"),
        ([*ENOUGH, "-r", "4", "train.py"], "4 does not match"),
        ([*ENOUGH, "--local-ranks-filter", "first", "train.py"], "must be a comma-separated list of integers"),
        ([*ENOUGH, "--rdzv-conf", "word", "train.py"], "word"),
    ],
)
def test_what_cannot_work_is_an_error_that_says_what_to_write(argv: list[str], message: str) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError) as caught:
        parse(argv, environ={})
    assert message in str(caught.value)


REFUSED = {
    "--grace": ["0", "soon"],
    "--memory": ["lots", "0"],
    "--metrics": ["everywhere"],
    "--checkpoint-every": ["0", "-1", "often", "0s", "ms", ""],
    "--port-range": ["29449-29410", "0-5", "29410", "1-70000", "a-b"],
}


@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for option, values in REFUSED.items() for value in values]
)
def test_values_that_are_none_are_refused_by_the_parser(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the usage, as torchrun does."""
    with pytest.raises(SystemExit):
        agent(option, value, "train.py")
    assert f"argument {option}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("2k", 2048), ("512M", 512 << 20), ("8GiB", 8 << 30), ("1 TB", 1 << 40)]
)
def test_sizes_are_read_in_the_usual_spellings(text: str, size: int) -> None:
    """Powers of 1024."""
    assert launch_args.size_bytes(text) == size
