"""Lines of an agent's log as JSON objects with job, node and round, for a collector of logs (`--json-log`)."""

import contextlib
import json
import logging
from collections.abc import Iterator

from chicle_elastic.monitoring.job_metrics import JobMetrics


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON."""

    def __init__(self, seen: JobMetrics) -> None:
        super().__init__()
        self._seen = seen

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback is a field of it."""
        line = {
            "time": record.created,
            "level": record.levelname,
            "job": self._seen.run_id,
            "node": self._seen.node,
            "round": self._seen.latest.round,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


@contextlib.contextmanager
def json_log(seen: JobMetrics) -> Iterator[None]:
    """Within this, the root logger writes lines of JSON to stderr, from the level INFO on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(seen))
    level = logging.root.level
    logging.root.addHandler(handler)
    logging.root.setLevel(logging.INFO)
    try:
        yield
    finally:
        logging.root.setLevel(level)
        logging.root.removeHandler(handler)
