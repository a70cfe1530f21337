"""`chicle simulate`: the page's scenario, a table, JSON, a picture, and what is refused."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cli.main import main
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.house.sources import ROOT

PAGE = ROOT / "docs/how-to/simulate.md"
SMALL = '[job]\nchunks = 32\niterations = 12\n[[nodes]]\nname = "n"\ncount = 3\n[[nodes]]\nname = "slow"\nspeed = 0.5\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small scenario."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def test_the_scenario_of_the_page_compares_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands there, with the header that the page shows."""
    text = PAGE.read_text(encoding="utf-8")
    scenario, data = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "spot.toml"
    path.write_text(scenario + data, encoding="utf-8")
    sets = ["none", "Rebalance", "Straggler+Rebalance"]
    assert main(["simulate", str(path), *(word for name in sets for word in ("--policies", name))]) == 0
    out = capsys.readouterr().out.splitlines()
    assert f"# {out[0]}" in text
    assert f"# {out[1]}" in text
    assert [line.split("|")[1].strip() for line in out[2:5]] == sets
    seconds = [float(line.split("|")[2]) for line in out[2:5]]
    assert seconds[1] < seconds[0]
    assert out[5].startswith("none: all 200 iterations used; 1 iterations aborted")
    assert "only --work real says" in out[-1]


def test_the_same_seed_prints_the_same_bytes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON, with every iteration; `--iterations` wins over the scenario."""
    arguments = ["simulate", str(path), "--json", "--iterations", "7", "--policies", "Rebalance", "--policies", "none"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert main(arguments) == 0
    assert capsys.readouterr().out == first
    found = json.loads(first)
    assert [result["label"] for result in found] == ["Rebalance", "none"]
    assert found[0]["history"]["iteration"] == list(range(1, 8))
    assert found[0]["time_s"] < found[1]["time_s"]
    assert not found[0]["is_real"]


def test_scenarios_are_compared_with_each_other(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their names stand before the policies; without --policies those of the scenario are taken, or Rebalance."""
    other = path.with_name("more.toml")
    other.write_text(
        SMALL.replace("count = 3", "count = 6").replace("chunks", 'policies = ["none"]\nchunks'), encoding="utf-8"
    )
    assert main(["simulate", str(path), str(other)]) == 0
    rows = capsys.readouterr().out.splitlines()[2:4]
    assert [row.split("|")[1].strip() for row in rows] == ["small: Rebalance", "more: none"]


def test_a_picture_is_drawn_for_each_row(path: Path) -> None:
    """With a number each where there are several."""
    pytest.importorskip("matplotlib")
    one, several = path.with_name("one.png"), path.with_name("several.png")
    assert main(["simulate", str(path), "--plot", str(one)]) == 0
    assert main(["simulate", str(path), "--plot", str(several), "--policies", "none", "--policies", "Rebalance"]) == 0
    drawn = [one, several.with_name("several-1.png"), several.with_name("several-2.png")]
    assert [picture.read_bytes()[:4] for picture in drawn] == [b"\x89PNG"] * 3


def test_real_work_trains_on_a_folder_of_chunks(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job ends where the gap is small enough, and nothing is said about convergence."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((600, 5))
    np.savez(path.with_name("data.npz"), X=X, y=(X[:, 0] + 0.1 * X[:, 1] > 0).astype(np.int64))
    folder = path.with_name("chunks")
    assert main(["convert", str(path.with_name("data.npz")), str(folder), "--chunk-bytes", "4096"]) == 0
    path.write_text(SMALL.replace("12", "200") + '[data]\nfolder = "chunks"\nC = 0.1\n', encoding="utf-8")
    capsys.readouterr()
    assert main(["simulate", str(path), "--work", "real", "--json"]) == 0
    [result] = json.loads(capsys.readouterr().out)
    assert result["is_real"]
    assert result["reason"].startswith("relative duality gap")
    assert result["history"]["duality_gap"][-1] <= 1e-3


MINE = """
from dataclasses import dataclass
import numpy as np
from chicle_elastic import Decision, MoveChunks, Policy, Solver, Trainer, Update

@dataclass(frozen=True, slots=True, kw_only=True)
class Shift(Policy):
    keep: int = 1

    def decide(self, observations):
        first, last = min(observations.num_chunks), max(observations.num_chunks)
        if observations.num_chunks[first] <= self.keep:
            return None
        return Decision(actions=(MoveChunks(first, last, 1),), reason="mine")

@dataclass(frozen=True, kw_only=True)
class Mean(Trainer):
    rate: float

    def init(self, schema, rng):
        return np.zeros(schema.num_features)

    def solver(self, ctx):
        return MeanSolver(ctx)

    def merge(self, model, weighted_sum, total_weight):
        return model + self.rate * (weighted_sum / total_weight - model)

    def figures(self, model, report):
        return {"mean": float(model.mean())}

class MeanSolver(Solver):
    def solve(self, model, budget):
        rows = np.concatenate([chunk.read().rows for chunk in self.chunks.values()])
        return Update(delta=rows.mean(axis=0), samples=len(rows), weight=len(rows))
"""


def test_a_trainer_and_policies_of_a_user_by_their_import_path(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a module in the present folder; the same policies are asked again when a job of one process is replayed."""
    monkeypatch.chdir(path.parent)
    module = f"mine_{path.parent.name}".replace("-", "_")
    path.with_name(f"{module}.py").write_text(MINE, encoding="utf-8")
    X = np.arange(3000.0).reshape(600, 5)
    np.savez(path.with_name("data.npz"), X=X, y=np.arange(600) % 2)
    assert main(["convert", str(path.with_name("data.npz")), "chunks", "--chunk-bytes", "4096"]) == 0
    data = f'[data]\nfolder = "chunks"\ntrainer = "{module}:Mean"\nparameters = {{ rate = 0.5 }}\n'
    path.write_text(SMALL + data, encoding="utf-8")
    capsys.readouterr()
    command = ["simulate", str(path), "--work", "real", "--json", "--policies", f"{module}:Shift:keep=2"]
    assert main(command) == 0
    [result] = json.loads(capsys.readouterr().out)
    assert result["history"]["mean"][-1] == pytest.approx(X.mean(), rel=1e-3)
    assert result["history"]["num_chunks.n-0"][-1] == 2
    path.write_text((SMALL + data).replace("rate", "pace"), encoding="utf-8")
    assert main(command) == 2
    assert "data.parameters" in capsys.readouterr().err
    assert main(["simulate", str(path), "--policies", f"{module}:Mean"]) == 2
    assert "is no policy" in capsys.readouterr().err

    shift = importlib.import_module(module).Shift
    source = ArraySource(X, np.arange(600) % 2, max_tasks=2)
    job = Job(trainer=LinearTrainer(tol=0.0), source=source, max_iterations=6, policies=(shift(keep=2),))
    InProcess(num_tasks=2, log_dir=path.parent).run(job)
    recording = str(path.with_name("job.recording.jsonl"))
    assert main(["replay", recording, "--policies", f"{module}:Shift:keep=2"]) == 0
    assert "all effects are equal" in capsys.readouterr().out
    assert main(["replay", recording, "--policies", f"{module}:Shift:keep=1000"]) == 1
    told = capsys.readouterr().err
    assert "effect" in told
    assert "leave out --policies" in told
    of_a_cluster = Path(__file__).parents[1] / "recordings/chaos-svm.recording.jsonl.gz"
    assert main(["replay", str(of_a_cluster), "--policies", "Rebalance"]) == 1
    assert "leave out --policies" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "nowhere:Mine"], "policy nowhere:Mine cannot be imported here"),
        (["--policies", "Balance"], "there is no policy 'Balance'"),
        (["--iterations", "0"], "--iterations 0: it must be >= 1"),
        (["--plot", "x.foo"], "--plot x.foo: its name must end with .png"),
        (["--work", "real"], "small.toml: --work real needs a table [data]"),
    ],
)
def test_what_cannot_be_is_a_fault_of_usage(
    path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and a message without a traceback."""
    assert main(["simulate", str(path), *arguments]) == 2
    assert message in capsys.readouterr().err


FAULTY = """
from dataclasses import dataclass

@dataclass
class Nameless:
    def decide(self, observations):
        return None
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Mine", "cannot be imported here (No module named 'nowhere')"),
        ("MODULE_broken:Mine", "cannot be imported here (invalid syntax"),
        ("MODULE:Nameless", "it is no class of trainers; derive it from chicle_elastic.Trainer"),
    ],
)
def test_a_class_of_a_user_that_cannot_be_used_is_a_fault_of_usage(
    path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a trainer, and as a policy: there is one line, which names it."""
    monkeypatch.chdir(path.parent)
    module = f"faulty_{path.parent.name}".replace("-", "_").replace("[", "_").replace("]", "_")
    path.with_name(f"{module}.py").write_text(FAULTY, encoding="utf-8")
    path.with_name(f"{module}_broken.py").write_text("this is no Python", encoding="utf-8")
    name = name.replace("MODULE", module)
    np.savez(path.with_name("data.npz"), X=np.arange(3000.0).reshape(600, 5), y=np.arange(600) % 2)
    assert main(["convert", str(path.with_name("data.npz")), "chunks", "--chunk-bytes", "4096"]) == 0
    plain = path.read_text()
    path.write_text(plain + f'[data]\nfolder = "chunks"\ntrainer = "{name}"\n', encoding="utf-8")
    capsys.readouterr()
    assert main(["simulate", str(path), "--work", "real"]) == 2
    told = capsys.readouterr().err
    assert f"{path}: data.trainer {name}" in told
    assert message in told
    path.write_text(plain, encoding="utf-8")
    assert main(["simulate", str(path), "--policies", name]) == 2
    told = capsys.readouterr().err
    assert f"policy {name}" in told
    assert (message if "imported" in message else "it is no policy") in told


def test_policies_of_a_scenario_are_named_with_their_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a scenario that is not there, too."""
    path.write_text(SMALL.replace("chunks", 'policies = ["Balance"]\nchunks'), encoding="utf-8")
    assert main(["simulate", str(path)]) == 2
    assert f"{path}: job.policies: there is no policy 'Balance'" in capsys.readouterr().err
    assert main(["simulate", str(path.with_name("no.toml"))]) == 2
    assert "no.toml: the scenario cannot be read" in capsys.readouterr().err


def test_a_recorded_job_is_simulated_under_other_policies(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the job as it was."""
    recording = ROOT / "tests/runtime/simulate/runs/a.recording.jsonl.gz"
    assert main(["simulate", str(recording), "--policies", "none", "--policies", "Rebalance"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in out[2:5]] == ["as recorded", "none", "Rebalance"]
    recorded_s, none_s, rebalance_s = (float(line.split("|")[2]) for line in out[2:5])
    assert none_s == pytest.approx(recorded_s, rel=0.15)
    assert rebalance_s < 0.8 * none_s
    assert main(["simulate", str(recording), "--work", "real"]) == 2
    assert "a recording has no data" in capsys.readouterr().err


def test_a_picture_of_too_many_nodes_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After the table."""
    path.write_text(SMALL.replace("count = 3", "count = 130").replace("32", "200"), encoding="utf-8")
    assert main(["simulate", str(path), "--plot", str(path.with_suffix(".png"))]) == 2
    shown = capsys.readouterr()
    assert "| Rebalance" in shown.out
    assert "131 nodes took part, and a picture has 128 lanes at most" in shown.err
