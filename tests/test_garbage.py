"""The collector pauses while many objects are made, and goes on afterwards, whoever ends first."""

import gc

import pytest

from chicle_elastic.garbage import uncollected


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
