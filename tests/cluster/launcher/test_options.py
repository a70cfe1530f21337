"""The launcher's command line: torchrun's options and ours, and what cannot work."""

import argparse
import os
from pathlib import Path

import pytest

from chicle_elastic.cluster import options as launch_args
from chicle_elastic.cluster.options import AgentCommand, StoreCommand, parse
from chicle_elastic.cluster.rendezvous.own_address import AddressOptions
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.transports.addresses import PortRange

ENOUGH = ["--rdzv-endpoint", "driver:29400", "--secret-file", "job.secret"]


def agent(*argv: str) -> AgentCommand:
    """Parse the command line of a node."""
    command = parse([*ENOUGH, *argv], environ={})
    assert isinstance(command, AgentCommand)
    return command


def test_options_of_torchrun_mean_what_they_mean_there() -> None:
    """They are parsed by torchrun's own parser."""
    arguments = agent("--nnodes", "2:8", "--rdzv-id", "run7", "--max-restarts", "5", "-m", "train", "--epochs", "3")
    assert (arguments.torchrun.nnodes, arguments.torchrun.rdzv_id, arguments.torchrun.max_restarts) == (
        "2:8",
        "run7",
        5,
    )
    assert arguments.torchrun.module
    assert arguments.torchrun.training_script == "train"
    assert arguments.torchrun.training_script_args == ["--epochs", "3"]


def test_what_torchrun_s_defaults_would_break_is_set() -> None:
    """Its backend, its way with SIGTERM, its refusal to restart a task."""
    arguments = agent("train.py").torchrun
    assert arguments.rdzv_backend == "chicle"
    assert arguments.max_restarts > 0


def test_our_options_become_the_options_of_the_node(tmp_path: Path) -> None:
    """Sizes in the units that people use."""
    options = agent(
        "--name", "rack1-n2", "--grace", "4.5", "--memory", "1.5GiB", "--log-dir", str(tmp_path), "train.py"
    ).options
    assert options.node == "rack1-n2"
    assert options.grace_s == 4.5
    assert options.memory_bytes == 3 << 29
    assert options.log_dir == tmp_path
    assert options.secret_file == Path("job.secret").absolute()


def test_metrics_are_served_where_it_is_said() -> None:
    """On this host alone, unless an address is given; nowhere by default."""
    assert agent("train.py").options.metrics is None
    assert agent("--metrics", "9464", "train.py").options.metrics == ("127.0.0.1", 9464)
    assert agent("--metrics", "0.0.0.0:9464", "train.py").options.metrics == ("0.0.0.0", 9464)
    with pytest.raises(argparse.ArgumentTypeError, match="write 9464"):
        launch_args.metrics_address("everywhere")


def test_certificates_are_those_of_a_folder() -> None:
    """Chunks by TLS need them; without the options there is none."""
    options = agent("--tls", "certificates", "--tls-bulk", "train.py").options
    assert (options.tls, options.has_tls_bulk) == (Path("certificates").absolute(), True)
    options = agent("train.py").options
    assert (options.tls, options.has_tls_bulk) == (None, False)
    with pytest.raises(UsageError, match="--tls-bulk needs the certificates of --tls FOLDER"):
        agent("--tls-bulk", "train.py")


def test_addresses_and_ports_are_those_of_the_options() -> None:
    """torchrun's --local-addr is another name of --advertise."""
    options = agent("--host", "0.0.0.0", "--advertise", "10.0.0.7", "--port-range", "29410-29449", "train.py").options
    assert options.address == AddressOptions(host="0.0.0.0", advertise="10.0.0.7", ports=PortRange(29410, 29449))
    assert agent("--local-addr", "10.0.0.8", "train.py").options.address.advertise == "10.0.0.8"
    assert agent("--interface", "eth1", "train.py").options.address.interface == "eth1"
    command = parse([*ENOUGH, "--store-only", "--host", "::", "--port-range", "29400-29409"], environ={})
    assert isinstance(command, StoreCommand)
    assert command.address == AddressOptions(host="::", ports=PortRange(29400, 29409))


@pytest.mark.parametrize("ports", ["29449-29410", "0-5", "29410", "1-70000", "a-b"])
def test_a_range_of_ports_that_is_none_is_named(ports: str, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse prints it, and exits."""
    with pytest.raises(SystemExit):
        agent("--port-range", ports, "train.py")
    assert "range of ports; write FIRST-LAST" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [("--interface", "eth0", "--host", "::"), ("--local-addr", "a", "--advertise", "b")]
)
def test_two_options_for_one_address_are_refused(options: tuple[str, ...]) -> None:
    """One of them would be ignored."""
    with pytest.raises(UsageError, match="leave"):
        agent(*options, "train.py")


def test_the_secret_of_the_environment_needs_no_file() -> None:
    """A file that is named goes before it; its content shows in no option."""
    environ = {"CHICLE_SECRET": "ab" * 32, "CHICLE_SECRET_FILE": "other.secret"}
    command = parse(["--rdzv-endpoint", "driver:29400", "train.py"], environ=environ)
    assert isinstance(command, AgentCommand)
    assert command.options.secret_file is None
    assert "abab" not in repr(command)
    named = parse([*ENOUGH, "train.py"], environ=environ)
    assert isinstance(named, AgentCommand)
    assert named.options.secret_file == Path("job.secret").absolute()


def test_a_job_is_saved_where_and_when_it_is_said(tmp_path: Path) -> None:
    """By iterations, by seconds, or once a minute."""
    folder = ("--checkpoint", str(tmp_path))
    saved = {
        every: agent(*folder, *(("--checkpoint-every", every) if every else ()), "train.py").options.checkpoint
        for every in ("100", "2.5s", "")
    }
    assert saved["100"] == CheckpointSettings(folder=str(tmp_path), every_iterations=100)
    assert saved["2.5s"] == CheckpointSettings(folder=str(tmp_path), every_s=2.5)
    assert saved[""] == CheckpointSettings(folder=str(tmp_path))
    assert agent("train.py").options.checkpoint is None
    assert agent(*folder, "--resume", "train.py").options.wants_resume
    at_url = agent("--checkpoint", "s3://bucket/job/", "train.py").options.checkpoint
    assert at_url == CheckpointSettings(folder="s3://bucket/job")


@pytest.mark.parametrize("every", ["0", "-1", "often", "0s", "ms", ""])
def test_a_pace_that_is_none_is_refused(every: str) -> None:
    """With examples of what can be written."""
    with pytest.raises(argparse.ArgumentTypeError):
        launch_args.checkpoint_interval(every)


def test_the_secret_file_may_be_named_by_the_environment() -> None:
    """An argument wins over it."""
    argv = ["--rdzv-endpoint", "driver:29400", "train.py"]
    command = parse(argv, environ={"CHICLE_SECRET_FILE": "/run/secrets/job"})
    assert isinstance(command, AgentCommand)
    assert command.options.secret_file == Path("/run/secrets/job")
    both = parse([*ENOUGH, "train.py"], environ={"CHICLE_SECRET_FILE": "/run/secrets/job"})
    assert isinstance(both, AgentCommand)
    assert both.options.secret_file.name == "job.secret"


def test_names_of_nodes_differ_by_default() -> None:
    """Several agents of one host must not have one name."""
    assert str(os.getpid()) in agent("train.py").options.node


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
    ],
)
def test_what_cannot_work_is_an_error_that_says_what_to_write(argv: list[str], message: str) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError) as caught:
        parse(argv, environ={})
    assert message in str(caught.value)


@pytest.mark.parametrize("argv", [["--grace", "0"], ["--grace", "soon"], ["--memory", "lots"], ["--memory", "0"]])
def test_values_that_are_none_are_refused_by_the_parser(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage, as torchrun does."""
    with pytest.raises(SystemExit):
        parse([*ENOUGH, *argv, "train.py"], environ={})
    assert f"argument {argv[0]}" in capsys.readouterr().err


def test_the_store_alone_needs_no_script() -> None:
    """And an option of that name behind the script is the script's."""
    assert parse([*ENOUGH, "--store-only"], environ={}) == StoreCommand(
        endpoint="driver:29400", secret_file=Path("job.secret")
    )
    assert agent("train.py", "--store-only").torchrun.training_script_args == ["--store-only"]


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("2k", 2048), ("512M", 512 << 20), ("8GiB", 8 << 30), ("1 TB", 1 << 40)]
)
def test_sizes_are_read_in_the_usual_spellings(text: str, size: int) -> None:
    """Powers of 1024."""
    assert launch_args.size_bytes(text) == size


def test_the_parser_is_torchrun_s() -> None:
    """So options of later versions of torch are there by themselves."""
    assert isinstance(launch_args.parser(), argparse.ArgumentParser)
    assert "--rdzv-conf" in launch_args.parser().format_help()
    assert "--secret-file" in launch_args.parser().format_help()
