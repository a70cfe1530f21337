"""Each alert of `chicle dashboards` fires by a real fault, and not before it.

Agents are scraped once a second before the fault and after it. promtool, of Prometheus' own package, evaluates the
rules over these values; the last ones are held for eight minutes more, because rules wait for minutes.
"""

import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pytest

from chicle_elastic.cli.main import main
from chicle_elastic.monitoring.openmetrics import METRICS
from tests.cluster.cluster_harness import AgentProcess, LocalAgents, paced_script
from tests.timeouts import timeout_s

parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="needs prometheus-client")
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool: make test-alerts")

HELD_S = 480  # a sample that is gone counts for five minutes, and rules wait for two
NUM_BEFORE = 3  # scrapes before a fault
END = "chicle_last_iteration_end_seconds"
FIRING = 'min by (alertname) (ALERTS{alertstate="firing"})'


def scrape(agent: AgentProcess) -> dict[str, float]:
    """What an agent says, by the names of series; nothing where none answers."""
    url = agent.wait_for("metrics")["url"]
    try:
        with urllib.request.urlopen(url, timeout=timeout_s(5)) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return {}
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {**sample.labels, "instance": agent.name, "job": "chicle"}
            inside = ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items())
            found[f"{sample.name}{{{inside}}}"] = sample.value
    return found


class Watch:
    """Scrapes agents once a second."""

    def __init__(self, agents: Sequence[AgentProcess]) -> None:
        self._agents = agents
        self._start_s = time.time()
        self.scrapes: list[dict[str, float]] = []

    def scrape(self) -> dict[str, float]:
        """Ask all agents, when the next second has begun."""
        time.sleep(max(0.0, self._start_s + len(self.scrapes) - time.time()))
        now = {name: value for agent in self._agents for name, value in scrape(agent).items()}
        self.scrapes.append(now)
        return now

    def series(self) -> dict[str, str]:
        """The values of all scrapes in the words of promtool, whose time begins with the first one, and held then."""
        names = dict.fromkeys(itertools.chain.from_iterable(self.scrapes))
        return {name: self._values(name) for name in names}

    def _values(self, name: str) -> str:
        start_s = self._start_s if name.startswith(END) else 0.0
        values = [scraped.get(name) for scraped in self.scrapes]
        words = ["_" if value is None else repr(value - start_s).replace("nan", "NaN") for value in values]
        trains = name.startswith(END) and values[-1] != values[-2]
        words.append(f"_x{HELD_S}" if values[-1] is None else f"{words[-1]}+{int(trains)}x{HELD_S}")
        return " ".join(words)


def total(scraped: Mapping[str, float], name: str) -> float:
    """The sum of the samples of a name."""
    return sum(value for series, value in scraped.items() if series.startswith(name))


def check(
    folder: Path,
    agents: Sequence[AgentProcess],
    fault: Callable[[], object],
    *,
    until: Callable[[dict[str, float], dict[str, float]], bool],
    fires: Collection[str],
) -> None:
    """Let a fault strike, and compare the alerts that fire with those that have to.

    Args:
        until: Whether the fault shows, by what was scraped before it and now.
        fires: Alerts after the fault; there are none before it.
    """
    watch = Watch(agents)
    for _ in range(NUM_BEFORE):
        healthy = watch.scrape()
    fault()
    end_s = time.monotonic() + timeout_s(60)
    while not until(healthy, watch.scrape()):
        assert time.monotonic() < end_s, watch.scrapes[-1]
    for _ in range(2):
        watch.scrape()
    moments = {NUM_BEFORE - 1: (), len(watch.scrapes) + HELD_S - 1: fires}
    case = {
        "interval": "1s",
        "input_series": [{"series": name, "values": values} for name, values in watch.series().items()],
        "promql_expr_test": [
            {
                "expr": FIRING,
                "eval_time": f"{moment}s",
                "exp_samples": [{"labels": f'{{alertname="Chicle{name}"}}', "value": 1} for name in sorted(expected)],
            }
            for moment, expected in moments.items()
        ],
    }
    assert main(["dashboards", str(folder)]) == 0
    rules = {"rule_files": ["chicle-alerts.yaml"], "evaluation_interval": "1s", "tests": [case]}
    (folder / "case.yaml").write_text(json.dumps(rules))  # which is YAML, too
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "test", "rules", "case.yaml"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def grows(name: str) -> Callable[[dict[str, float], dict[str, float]], bool]:
    """Whether a counter has grown since the fault."""
    return lambda healthy, now: total(now, name) > total(healthy, name)


@needs_promtool
def test_eight_faults_are_eight_alerts(tmp_path: Path) -> None:
    """One after the other in one job; what a fault brings with it fires as well."""
    slow_node = "n3=400"  # µs for each of its 256 rows, on top of 20 ms
    script = paced_script(tmp_path, "--cost", slow_node)
    with LocalAgents(tmp_path, nodes="2:4", script=script, options=("--metrics", "0")) as cluster:
        n0, n1, n2 = (cluster.start(name) for name in ("n0", "n1", "n2"))
        n0.wait_for_members(3)
        verify = functools.partial(check, tmp_path)

        slow = []
        verify(
            [n0, n1],
            lambda: slow.append(cluster.start("n3")),
            until=lambda _, now: total(now, "chicle_tasks{") == 2 * 4,
            fires={"SlowNode"},
        )
        losses = 'chicle_membership_changes_total{change="loss"'
        verify([n0, n1], slow[0].kill_all, until=grows(losses), fires={"NodeLost"})
        n0.wait_for_members(3)
        verify(
            [n0, n1],
            lambda: os.kill(n1.task_pid, signal.SIGKILL),
            until=grows("chicle_task_deaths"),
            fires={"TaskDied", "NodeLost"},
        )
        n0.wait_for_members(3)

        def stop_for_a_while() -> None:
            n1.signal(signal.SIGSTOP)
            n0.wait_for("lost", after=len(n0.events()))
            n1.signal(signal.SIGCONT)

        verify([n0, n1], stop_for_a_while, until=grows("chicle_expulsions"), fires={"NodeExpelled", "NodeLost"})
        n0.wait_for_members(3)
        task = n2.task_pid
        stands = lambda _, now: len({series for series in now if series.startswith(END)}) == 2  # noqa: E731
        verify([n0, n1], lambda: os.kill(task, signal.SIGSTOP), until=stands, fires={"NoIteration"})
        os.kill(task, signal.SIGCONT)
        n0.wait_for_members(3)
        assert cluster.store is not None
        verify(
            [n0, n1],
            cluster.store.close,
            until=lambda _, now: total(now, "chicle_store_reachable") == 0,
            fires={"StoreUnreachable"},
        )

        def kill_two() -> None:
            n1.kill_all()
            n2.kill_all()

        # One of three may not declare the two others lost. The store is away, too, and was for less than a minute.
        verify([n0], kill_two, until=grows("chicle_paused"), fires={"JobPaused", "StoreUnreachable"})
        verify([n0], n0.kill_all, until=lambda _, now: not now, fires={"NoAgentAnswers"})


def test_every_metric_has_a_panel_and_no_other_metric_is_used(tmp_path: Path) -> None:
    """In the dashboard and in the rules."""
    assert main(["dashboards", str(tmp_path / "new")]) == 0
    board = json.loads((tmp_path / "new/chicle-dashboard.json").read_text())
    names = {metric.name for metric in METRICS}
    assert {panel["title"] for panel in board["panels"]} == names
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}) == len(names)
    known = {f"{name}{suffix}" for name in names for suffix in ("", "_total", "_info", "_sum", "_count")}
    used = [panel["targets"][0]["expr"] for panel in board["panels"]]
    used.append((tmp_path / "new/chicle-alerts.yaml").read_text().partition("groups:")[2])
    words = set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in " ".join(used)).split())
    assert {word for word in words if word.startswith("chicle_")} <= known
