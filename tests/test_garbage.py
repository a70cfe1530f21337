"""The collector pauses while many objects are made, and goes on afterwards, whoever ends first."""

import gc

import pytest

from chicle_elastic.cluster.consensus.entries import Entry
from chicle_elastic.cluster.consensus.log import Log
from chicle_elastic.garbage import uncollected
from chicle_elastic.scheduling import events
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from tests.scheduling.stage import infos


def test_the_collector_goes_on_when_the_last_one_has_ended() -> None:
    """Also where the first to begin is the first to end, as threads do, and after an error."""
    first, second = uncollected(), uncollected()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_the_program_has_switched_off_stays_off() -> None:
    """It is the program's."""
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_known_of_many_chunks_is_not_looked_through_while_it_is_made() -> None:
    """A change of a million chunks took a quarter of its time for that."""
    log, declared = Log(Scheduler(SchedulerSettings())), events.ChunksDeclared(chunks=infos(5000))
    runs: list[str] = []
    note = lambda phase, info: runs.append(phase)  # noqa: E731
    gc.callbacks.append(note)
    try:
        log.append(Entry(now=0.0, event=declared, term=1))
    finally:
        gc.callbacks.remove(note)
    assert runs.count("start") <= 1  # after it
