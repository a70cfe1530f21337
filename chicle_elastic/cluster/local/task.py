"""The task of a local cluster: makes the job that was staged, runs it, and tells the driver what comes of it.

    task -> driver   records (some, as they come, and changes of the membership)     ask (record, and the model behind
                     it)     wait (text: why nothing happens)     done, then the outcome     raised (class, text,
                     traceback)     kept (records so far, and the model behind them)
    driver -> task   staged (the data is there)     answer (iteration, is_ended)      send      interrupted

After Ctrl-C the driver does not wait long for the end of an iteration: a task that hears "interrupted" sends the model
of the last one from the thread that hears it, while its main thread computes.

All tasks that stay to the end have the same outcome: each says that it is done, and the driver has one of them send it.
"""

import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from queue import SimpleQueue
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.cluster.local.job_spec import build
from chicle_elastic.cluster.local.messages import Connection, Received
from chicle_elastic.cluster.local.staging import MappedFiles
from chicle_elastic.errors import PeerLostError, ProtocolError
from chicle_elastic.monitoring.records import IterationRecord, Transition
from chicle_elastic.runtime.cluster_task.runtime import ClusterRuntime
from chicle_elastic.runtime.training.job import Outcome
from chicle_elastic.waits import tell_through

TELL_S = 0.05  # records are told in batches: a message per iteration and task would be more work than a small iteration
EXIT_FAILED = 1
GONE = "the driver of the local cluster is gone"
MOST_READINGS = 5  # of a model that is written now and then, until two in a row are equal


def run_task(_: Connection, job: Mapping[str, Any], fds: Sequence[int]) -> int:
    """Be a task until its job is over; returns its exit code.

    Args:
        job: "described" by `job_spec.stage`; "control", the address of the agent; "max_nodes", how many there may be.
    """
    driver, *data = fds
    described = job["described"]
    with Connection(socket.socket(fileno=driver)) as line:
        reporter = Reporter(line)
        try:
            sys.path[:] = described["sys_path"]
            if described["folder"] is not None:
                os.chdir(described["folder"])
            built = build(
                described,
                MappedFiles(data, reporter.wait_for_data),
                tell=reporter.tell,
                keep=reporter.keep,
                ask=reporter.ask,
                on_transition=reporter.note,
            )
            with tell_through(reporter.wait):
                runtime = ClusterRuntime(
                    control=job["control"], max_nodes=job["max_nodes"], began_s=described["began_s"]
                )
                outcome = runtime.run(built)
            reporter.finish(outcome)
        except Exception as error:
            traceback.print_exc()
            reporter.raised(error, traceback.format_exc())
            return EXIT_FAILED
        finally:
            reporter.close()
            for fd in data:
                os.close(fd)
    return 0


class Reporter:
    """Tells the driver."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._records: list[dict[str, Any]] = []
        self._transitions: list[dict[str, Any]] = []
        self._told_s = 0.0
        self._kept: list[IterationRecord] = []
        self._model: Array | None = None
        self._inbox: SimpleQueue[Received | None] = SimpleQueue()
        self._is_staged = False
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="chicle-driver", daemon=True)
        self._thread.start()

    def keep(self, record: IterationRecord, model: Array) -> None:
        """Remember an iteration and where its model is, for a driver that does not wait for the next one to end."""
        self._kept.append(record)
        self._model = model

    def tell(self, record: IterationRecord) -> None:
        """Tell of an iteration, at once or a moment later."""
        self._records.append(asdict(record))
        self._tell()

    def note(self, transition: Transition) -> None:
        """Tell of a change of the membership, at once or a moment later."""
        self._transitions.append(asdict(transition))
        self._tell()

    def _tell(self, *, wait_s: float = TELL_S) -> None:
        if time.monotonic() - self._told_s > wait_s:
            # A driver that has its outcome hangs up, perhaps before this task is as far; one that died ends us anyway.
            with contextlib.suppress(PeerLostError):
                self._send("records", records=self._records, transitions=self._transitions)
            self._records, self._transitions = [], []
            self._told_s = time.monotonic()

    def wait_for_data(self) -> None:
        """Wait until all data is staged. Raises PeerLostError when the driver is gone before."""
        self._news.wait()
        if not self._is_staged:
            raise PeerLostError(GONE)

    def wait(self, text: str) -> None:
        """Tell why nothing happens; called in a thread of its own."""
        with contextlib.suppress(PeerLostError):
            self._send("wait", text=text)

    def ask(self, record: IterationRecord, model: Array) -> bool:
        """Ask whether the job ends here, and wait for the answer. Raises PeerLostError when the driver is gone."""
        self._send("ask", payload=np.ascontiguousarray(model), dtype=model.dtype.str, record=asdict(record))
        while (said := self._inbox.get()) is not None:
            if said.kind == "answer" and said.fields["iteration"] == record.iteration:
                return bool(said.fields["is_ended"])
        raise PeerLostError(GONE)

    def finish(self, outcome: Outcome) -> None:
        """Say that the job is done, and send the outcome when the driver wants it."""
        self._tell(wait_s=0.0)
        try:
            self._send("done")
        except PeerLostError:
            return  # it has the outcome of another task
        said = self._inbox.get()
        if said is None or said.kind != "send":
            return
        certificate = outcome.certificate
        arrays = {
            "model": outcome.model,
            "state": outcome.state,
            "rebuilt": None if certificate is None else certificate.rebuilt,
            "progress": None if certificate is None else np.asarray(certificate.progress),
        }
        described = {}
        payload = bytearray()
        for name, array in arrays.items():
            if array is not None:
                described[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "start": len(payload)}
                payload += np.ascontiguousarray(array).tobytes()
        report = None
        if certificate is not None:
            names = (field.name for field in fields(certificate) if field.name not in arrays)
            report = {name: getattr(certificate, name) for name in names}
        self._send(
            "outcome",
            payload=payload,
            arrays=described,
            certificate=report,
            history=[asdict(record) for record in outcome.history],
            reason=outcome.reason,
            ledger=[asdict(account) for account in outcome.ledger],
        )

    def raised(self, error: Exception, text: str) -> None:
        """Tell that this task has failed; not when it has lost its agent, for then others go on."""
        if not isinstance(error, PeerLostError | ProtocolError):
            with contextlib.suppress(PeerLostError):
                self._send("raised", error=type(error).__name__, message=str(error), traceback=text)

    def close(self) -> None:
        """End the line."""
        self._line.shut_down()
        self._thread.join()

    def _listen(self) -> None:
        with contextlib.suppress(ProtocolError, OSError):
            while (said := self._line.receive()) is not None:
                if said.kind == "staged":
                    self._is_staged = True
                    self._news.set()
                elif said.kind == "interrupted":
                    self._send_kept()
                else:
                    self._inbox.put(said)
        self._news.set()
        self._inbox.put(None)

    def _send_kept(self) -> None:
        """The last iteration that this task has merged, unless there is none."""
        records, model = list(self._kept), self._model
        if model is None:
            return
        copy = model.copy()
        for _ in range(MOST_READINGS):  # a merge writes the model in place
            before, copy = copy, model.copy()
            if np.array_equal(before, copy, equal_nan=True):
                break
        with contextlib.suppress(PeerLostError):
            self._send("kept", payload=copy, dtype=copy.dtype.str, records=[asdict(record) for record in records])

    def _send(self, kind: str, **fields: Any) -> None:
        try:
            self._line.send(kind, **fields)
        except ConnectionError as error:
            raise PeerLostError(GONE) from error
