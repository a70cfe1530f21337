"""Where the output of a task goes: to the streams of the agent, or into files that lie as torchrun's do.

    LOG_DIR/RUN_ID_xxxxxxxx/attempt_N/0/stdout.log, stderr.log    what --redirects and --tee name
    LOG_DIR/RUN_ID_xxxxxxxx/attempt_N/0/error.json                the error of the task, which torch's `record` writes
    LOG_DIR/RUN_ID_xxxxxxxx/attempt_N/filtered_stdout.log, ...    lines of --tee with a text of the filters

A thread follows each file of --tee, and prints its lines: the task never waits for the console. The end of the agent
waits `CLOSE_S` for one that nobody reads; the file has everything. Without --tee and --redirects a task prints into the
console itself, and waits for one that nobody reads, as in any shell; its agent does not, and a signal ends both.
"""

import codecs
import contextlib
import io
import locale
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TextIO

from chicle_elastic.cluster.task_options import TaskOptions
from chicle_elastic.disk_watch import asking
from chicle_elastic.errors import UsageError

FOLLOW_S = 0.1  # how often a file is read for new lines; as often as torchrun does
CLOSE_S = 5.0  # how long a console may take no line before the end of an agent leaves the rest to the files
MOST_BYTES = 1 << 16  # of one read; a longer line is told in pieces

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Destinations:
    """Says where the output of one task goes. "" stands for the stream of the agent, or for nowhere."""

    stdout: str = ""
    stderr: str = ""
    error_file: str = ""
    followed_stdout: str = ""
    followed_stderr: str = ""
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class TaskOutput:
    """Gives each task of a node its files, one task at a time. Raises UsageError when a folder cannot be made, or there
    is no plug-in of the name in --logs-specs."""

    def __init__(self, options: TaskOptions, run_id: str) -> None:
        self.error_file = ""  # that of the last task
        self._options, self._run_id = options, run_id
        self._folder: Path | None = None
        self._num_shown = 0  # lines, on both streams
        self._plugin = None if options.logs_specs is None else _load_plugin(options)
        self._following: list[tuple[threading.Event, threading.Thread]] = []

    @contextlib.contextmanager
    def open(self, environment: dict[str, str]) -> Iterator[tuple[TextIO | None, TextIO | None]]:
        """Open what the next task writes to; its files are followed from then on. The environment gets the name of the
        error file."""
        try:
            with contextlib.ExitStack() as stack:
                with asking(self._options.log_dir or tempfile.gettempdir()):
                    to = self._destinations(environment)
                    files = [stack.enter_context(open(path, "w")) if path else None for path in (to.stdout, to.stderr)]
                self.error_file = to.error_file
                if self._plugin is None:
                    environment["TORCHELASTIC_ERROR_FILE"] = to.error_file  # perhaps in place of the agent's own one
                options = self._options
                self._follow(to.followed_stdout, sys.stdout, to.filtered_stdout, options.stdout_filters)
                self._follow(to.followed_stderr, sys.stderr, to.filtered_stderr, options.stderr_filters)
                yield files[0], files[1]
        except OSError as error:
            raise UsageError(f"the task or its log files: {error}; look at --log-dir and the script") from error

    def end(self) -> None:
        """Have what the task has still written printed. Never waits: nobody may read the console."""
        for has_ended, _ in self._following:
            has_ended.set()

    def close(self) -> None:
        """Print what all tasks have still written, and close their files, as long as the console takes lines."""
        self.end()
        for _, thread in self._following:
            before = None
            while thread.is_alive() and before != self._num_shown:
                before = self._num_shown
                thread.join(CLOSE_S)
        self._following.clear()

    def _destinations(self, environment: dict[str, str]) -> Destinations:
        options = self._options
        if self._plugin is not None:
            found = self._plugin.reify({0: environment})
            return Destinations(
                found.stdouts[0],
                found.stderrs[0],
                found.error_files[0],
                found.tee_stdouts.get(0, ""),
                found.tee_stderrs.get(0, ""),
                found.filtered_stdout,
                found.filtered_stderr,
            )
        is_shown = not options.shown_ranks or 0 in options.shown_ranks
        console = "" if is_shown else os.devnull
        if options.log_dir is None:
            return Destinations(console, console)
        if self._folder is None:
            base = options.log_dir or tempfile.mkdtemp(prefix="torchelastic_")
            os.makedirs(base, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f"{self._run_id}_", dir=base))
        attempt = self._folder / f"attempt_{environment['TORCHELASTIC_RESTART_COUNT']}"
        shutil.rmtree(attempt, ignore_errors=True)
        (attempt / "0").mkdir(parents=True)
        stdout, stderr = str(attempt / "0" / "stdout.log"), str(attempt / "0" / "stderr.log")
        in_file = options.redirects | options.tee
        return Destinations(
            stdout if in_file & 1 else console,
            stderr if in_file & 2 else console,
            str(attempt / "0" / "error.json"),
            stdout if options.tee & 1 and is_shown else "",
            stderr if options.tee & 2 and is_shown else "",
            str(attempt / "filtered_stdout.log"),
            str(attempt / "filtered_stderr.log"),
        )

    def _follow(self, path: str, console: TextIO, filtered: str, texts: Sequence[str]) -> None:
        copy = contextlib.nullcontext() if not texts else _Copy(filtered)
        if not path:
            with copy:
                return

        # Of its own: a lock that this thread holds for ever would hold up the end of the process.
        shown = open(os.dup(console.fileno()), "w", encoding=console.encoding, errors=console.errors)  # noqa: SIM115

        def tell(line: str) -> None:
            with contextlib.suppress(OSError, ValueError):  # nobody reads the console any more, or it cannot show this
                shown.write(self._options.prefix + line)
                shown.flush()
            self._num_shown += 1
            if isinstance(copy, _Copy) and any(text in line for text in texts):
                copy.write(self._options.prefix + line)

        def follow() -> None:
            with copy:
                tell_lines(path, tell, has_ended)
            with contextlib.suppress(OSError):
                shown.close()

        has_ended = threading.Event()
        thread = threading.Thread(target=follow, name="chicle-tee", daemon=True)
        thread.start()
        self._following = [(ended, before) for ended, before in self._following if before.is_alive()]
        self._following.append((has_ended, thread))


class _Copy:
    """A file with some lines of the output. It ends with a warning where the disk is full: the agent goes on."""

    def __init__(self, path: str) -> None:
        self._file: TextIO | None = open(path, "w", errors="replace", buffering=1)  # noqa: SIM115 - until the task ends

    def write(self, line: str) -> None:
        """Write a line."""
        if self._file is not None:
            try:
                self._file.write(line)
            except OSError as error:
                logger.warning("%s gets no more lines: %s", self._file.name, error)
                self.__exit__()

    def __enter__(self) -> "_Copy":
        return self

    def __exit__(self, *exc_info: object) -> None:
        file, self._file = self._file, None
        with contextlib.suppress(OSError):  # the disk is full, and the warning has said so
            if file is not None:
                file.close()


def tell_lines(path: str, tell: Callable[[str], object], has_ended: threading.Event) -> None:
    """Tell the lines of a file that grows, until its writer has ended. The beginning of a line waits for its end until
    the next look: Python's `print` writes a line and its end one after the other."""
    to_text = codecs.getincrementaldecoder(locale.getpreferredencoding(do_setlocale=False))("replace")
    decoder = io.IncrementalNewlineDecoder(to_text, translate=True)
    begun = ""
    with open(path, "rb") as file:
        while True:
            is_last, has_waited = has_ended.is_set(), bool(begun)
            while read := file.read(MOST_BYTES):
                *lines, begun = (begun + decoder.decode(read)).split("\n")
                for line in lines:
                    tell(line + "\n")
                has_waited &= not lines
                if len(begun) >= MOST_BYTES:
                    tell(begun)
                    begun = ""
            if is_last:
                begun += decoder.decode(b"", final=True)
            if begun and (is_last or has_waited):
                tell(begun)
                begun = ""
            if is_last:
                return
            has_ended.wait(FOLLOW_S)


def _load_plugin(options: TaskOptions) -> Any:
    """Make the plug-in of --logs-specs. It is a class of torch's, so this agent has torch in memory."""
    from torch.distributed.elastic.multiprocessing import Std

    found = entry_points(group="torchrun.logs_specs", name=options.logs_specs or "")
    if not found:
        raise UsageError(f"--logs-specs {options.logs_specs}: no installed package has such a torchrun.logs_specs")
    return next(iter(found)).load()(
        log_dir=options.log_dir or None,
        redirects=Std(options.redirects),
        tee=Std(options.tee),
        local_ranks_filter=set(options.shown_ranks) or None,
    )
