"""Scripts of faults: what they may say, and that a fault strikes exactly when it is told to."""

import json
import re
from pathlib import Path

import pytest

from chicle_elastic.cluster.net import fault_points
from chicle_elastic.errors import UsageError
from tests.harness import fault_schedule
from tests.harness.faults import Fault, Striker, main, read_fired, read_script, write_script

PACKAGE = Path(fault_points.__file__).parents[2]


def fault(**changes: object) -> Fault:
    """A fault that does next to nothing."""
    fields = {"name": "a", "node": "n0", "step": "copy.committed", "action": "delay", "seconds": 0.0, **changes}
    return Fault(**fields)  # type: ignore[arg-type]


def test_a_script_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Every field survives."""
    faults = [fault(), fault(name="b", action="kill", occurrence=3, where={"chunk": 7})]
    write_script(tmp_path / "script.json", faults)
    assert read_script(tmp_path / "script.json") == faults


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": "copy.before_lunch"}, "there is no fault point 'copy.before_lunch'"),
        ({"action": "explode"}, "there is no action 'explode'"),
        ({"action": "drop", "step": "free.done"}, "nothing can be dropped at 'free.done'"),
        ({"occurrence": 0}, "occurrence >= 1"),
        ({"seconds": -1.0}, "seconds from 0 to 600"),
    ],
)
def test_a_fault_that_would_never_strike_is_refused(changes: dict[str, object], message: str) -> None:
    """A mistake in a script must not pass for a job that stood the fault."""
    with pytest.raises(UsageError, match=re.escape(message)):
        fault(**changes)


@pytest.mark.parametrize("text", ["", "{}", '[{"name": "a"}]', '[{"name": "a", "node": "n", "hook": "os.abort()"}]'])
def test_what_is_no_script_is_refused(tmp_path: Path, text: str) -> None:
    """The error names the file."""
    (tmp_path / "script.json").write_text(text)
    with pytest.raises(UsageError, match=r"script\.json"):
        read_script(tmp_path / "script.json")


def test_a_node_with_a_wrong_script_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told before anything runs."""
    (tmp_path / "script.json").write_text(json.dumps([{"name": "a", "node": "n0", "step": "x", "action": "kill"}]))
    arguments = ["--rdzv-endpoint", "127.0.0.1:1", "--secret-file", str(tmp_path / "secret"), "train.py"]
    assert main([str(tmp_path / "script.json"), str(tmp_path / "fired"), *arguments]) == 2
    assert "there is no fault point 'x'" in capsys.readouterr().err


def test_every_step_is_reached_somewhere() -> None:
    """A fault at a step that no process reaches would never strike."""
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    reached = {step for source in sources for step in re.findall(r'\bhit\(\s*"([^"]+)"', source)}
    assert reached == fault_points.FAULT_POINTS
    assert {card.step for card in fault_schedule.all_faults()} == fault_points.FAULT_POINTS


def test_a_fault_strikes_once_at_its_occurrence_with_its_values(tmp_path: Path) -> None:
    """Other nodes, steps and values are not counted."""
    script, fired = tmp_path / "script.json", tmp_path / "fired"
    write_script(script, [fault(occurrence=2, where={"chunk": 7})])
    striker = Striker(script, fired, node="n0", store_port=1)
    other = Striker(script, fired, node="n1", store_port=1)
    for chunk in (7, 3, 3):
        striker("copy.committed", {"chunk": chunk})
        striker("copy.before_commit", {"chunk": 7})
        other("copy.committed", {"chunk": 7})
    assert read_fired(fired) == []
    for _ in range(3):
        striker("copy.committed", {"chunk": 7, "round": 4})
    [entry] = read_fired(fired)
    assert (entry["node"], entry["step"], entry["action"]) == ("n0", "copy.committed", "delay")
    assert entry["at"] == {"chunk": 7, "round": 4}


def test_faults_can_be_armed_while_the_node_runs(tmp_path: Path) -> None:
    """The script is read again when it has been replaced, and faults that have struck do not strike again."""
    script, fired = tmp_path / "script.json", tmp_path / "fired"
    striker = Striker(script, fired, node="n0", store_port=1)
    striker("copy.committed", {})
    write_script(script, [fault()])
    striker("copy.committed", {})
    write_script(script, [fault(), fault(name="b")])
    striker("copy.committed", {})
    striker("copy.committed", {})
    assert [entry["name"] for entry in read_fired(fired)] == ["a", "b"]


def test_a_dropped_work_fails_with_an_error_that_names_the_fault(tmp_path: Path) -> None:
    """The agent sees a connection that failed."""
    script = tmp_path / "script.json"
    write_script(script, [fault(step="copy.before_fetch", action="drop")])
    striker = Striker(script, tmp_path / "fired", node="n0", store_port=1)
    with pytest.raises(ConnectionError, match="'a' drops this"):
        striker("copy.before_fetch", {"chunk": 1})
