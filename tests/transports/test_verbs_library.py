"""Why pyverbs cannot be used is said exactly, in the words of the real errors; nothing else of RDMA is needed here."""

import enum
import sys
from types import SimpleNamespace

import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.transports.verbs.failures import QueuePairError, error_of_status
from chicle_elastic.transports.verbs.library import constants_of, reason_of
from chicle_elastic.transports.verbs.memory import MemoryKey
from chicle_elastic.transports.verbs.queue_pair import EndPoint
from tests.programs import run_python


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            ModuleNotFoundError("No module named 'pyverbs'", name="pyverbs"),
            "pyverbs is not installed; install python3-py",
        ),
        (
            ModuleNotFoundError("No module named 'pyverbs.device'", name="pyverbs.device"),
            "has no pyverbs.device for this Python",
        ),
        (
            ImportError("librdmacm.so.1: cannot open shared object file: No such file or directory"),
            "pyverbs needs librdmacm.so.1, which is not installed; install libibverbs1 and librdmacm1",
        ),
        (
            ImportError("/lib/x86_64-linux-gnu/libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found (required by"),
            "another release of rdma-core than the one here",
        ),
        (ImportError("undefined symbol: x"), r"pyverbs cannot be imported \(ImportError: undefined symbol: x\)"),
    ],
    ids=["none", "another Python", "no library", "another release", "something else"],
)
def test_each_reason_is_named(error: Exception, reason: str) -> None:
    """With what to install."""
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(reason_of(error))
    assert "install" in reason_of(error)


def test_a_missing_pyverbs_is_no_error_before_it_is_wanted() -> None:
    """Importing the transport loads none, and asking for it says what is missing."""
    program = (
        "import sys; sys.modules['pyverbs'] = None; import chicle_elastic.transports.verbs.transport\n"
        "from chicle_elastic.transports.verbs.library import RdmaUnavailableError, load\n"
        "assert 'torch' not in sys.modules and not [name for name in sys.modules if name.startswith('pyverbs.')]\n"
        "try: load()\nexcept RdmaUnavailableError as error: print(error)"
    )
    done = run_python("-c", program)
    assert "pyverbs" in done.stdout
    assert "install python3-pyverbs" in done.stdout


def test_constants_are_found_in_old_and_new_releases() -> None:
    """Flat up to 44, in enumerations later."""

    class Access(enum.IntFlag):
        IBV_ACCESS_LOCAL_WRITE = 1
        IBV_ACCESS_REMOTE_READ = 4

    new = SimpleNamespace(ibv_access_flags=Access, other="x")
    old = SimpleNamespace(IBV_ACCESS_LOCAL_WRITE=1, IBV_ACCESS_REMOTE_READ=4, os=sys)
    assert constants_of(new) == constants_of(old) == {"IBV_ACCESS_LOCAL_WRITE": 1, "IBV_ACCESS_REMOTE_READ": 4}


def test_a_status_that_nobody_expected_has_an_error_too() -> None:
    """With its number, where it has no name."""
    error = error_of_status(99, {12: "RETRY_EXC_ERR"}, what="a READ", peer="n2")
    assert isinstance(error, QueuePairError)
    assert str(error).startswith("a READ failed (99): n2 ")


GOOD = {"number": 17, "packet": 0, "gid": "0000:0000:0000:0000:0000:ffff:0a08:0001", "lid": 0, "mtu": 5, "reads": 16}


def test_an_end_point_travels_as_json() -> None:
    """As it was."""
    assert EndPoint.from_json(GOOD, peer="n2").to_json() == GOOD
    assert MemoryKey.from_json([1, 1 << 63, 4096], peer="n2").to_json() == [1, 1 << 63, 4096]


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 0},
        {"number": 1 << 24},
        {"packet": -1},
        {"packet": True},
        {"mtu": 6},
        {"reads": 0},
        {"reads": 1 << 20},
        {"lid": 1 << 16},
        {"gid": "10.8.0.1"},
        {"gid": 7},
        {"gid": None},
    ],
)
def test_an_end_point_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    """Before a queue pair is made with it: a peer with the secret can be wrong, too."""
    with pytest.raises(ProtocolError, match="n2 describes its queue pair as"):
        EndPoint.from_json({**GOOD, **changes}, peer="n2")


@pytest.mark.parametrize("content", [None, {}, [], [1, 2], [1, 2, 3, 4], [1, 2, "3"], [1 << 32, 0, 1], [1, -1, 1]])
def test_a_key_that_cannot_be_is_refused(content: object) -> None:
    """Before a card is asked to use it."""
    with pytest.raises(ProtocolError, match="n2 sent a key for its memory that is none"):
        MemoryKey.from_json(content, peer="n2")
