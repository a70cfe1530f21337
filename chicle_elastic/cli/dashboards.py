"""Write a dashboard for Grafana and alert rules for Prometheus, of the metrics that agents serve with --metrics.

Import chicle-dashboard.json in Grafana, and name chicle-alerts.yaml under rule_files in prometheus.yml.
"""

import argparse
from pathlib import Path

from chicle_elastic.monitoring.dashboards import alert_rules, dashboard


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle dashboards` takes."""
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="where to write; default: here")


def run(arguments: argparse.Namespace) -> int:
    """Write both files and print their names. Raises OSError when the folder cannot be written."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("chicle-dashboard.json", dashboard()), ("chicle-alerts.yaml", alert_rules())):
        (arguments.folder / name).write_text(text, encoding="utf-8")
        print(arguments.folder / name)
    return 0
