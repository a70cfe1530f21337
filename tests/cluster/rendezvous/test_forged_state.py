"""What lies under the rendezvous key may have been written by anybody: the error comes in the right process only."""

import base64
import json
import pickle
import threading
import time
from collections.abc import Callable

import pytest

from chicle_elastic.cluster.rendezvous.errors import ForgedStateError
from chicle_elastic.cluster.rendezvous.signed_value import MAX_CELL_BYTES, SignedValue
from chicle_elastic.errors import SecretError, UsageError
from chicle_elastic.transports.secret import MAX_KEYS, JobSecret
from tests.cluster.rendezvous.rendezvous_agents import STATE_KEY, Party, join, party, results, start
from tests.timeouts import timeout_s

HURT: list[str] = []


class Bomb:
    """Its pickle runs code when somebody loads it."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return HURT.append, ("unpickled",)


def _signed_with_another_secret(genuine: bytes) -> bytes:
    return JobSecret.generate().sign(STATE_KEY, json.loads(genuine.partition(b" ")[2]))


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "a pickle": lambda genuine: pickle.dumps(Bomb()),
    "a pickle in base64, as torch writes it": lambda genuine: base64.b64encode(pickle.dumps(Bomb())),
    "JSON without a signature": lambda genuine: genuine.partition(b" ")[2],
    "signed with another secret": _signed_with_another_secret,
    "truncated": lambda genuine: genuine[:-20],
    "one bit flipped": lambda genuine: genuine[:-5] + bytes([genuine[-5] ^ 1]) + genuine[-4:],
    "empty": lambda genuine: b"",
    "garbage": lambda genuine: bytes(range(256)),
    "far too long": lambda genuine: b"x" * (MAX_CELL_BYTES + 1),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_members_put_the_good_state_back_and_go_on(forgery: str, caplog: pytest.LogCaptureFixture) -> None:
    """A forged value costs an error in the log, and no member."""
    with party() as cluster:
        handlers = cluster.handlers(3)
        join(handlers)
        _put(cluster, FORGERIES[forgery](_raw(cluster)))
        assert sorted(info.rank for info in join(handlers)) == [0, 1, 2]
        assert "restores the last valid state of the rendezvous" in caplog.text
        assert not HURT


@pytest.mark.parametrize("forgery", FORGERIES)
def test_who_has_seen_no_good_state_ends_with_an_error(
    forgery: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing tells it what the state should be; it writes nothing, so that it harms nobody who knows better."""
    monkeypatch.setattr("chicle_elastic.cluster.rendezvous.state_store.HEAL_S", 0.05)
    with party() as cluster:
        first = cluster.handler("n0", max_nodes=1, last_call_s=0.1)
        join([first])
        forged = FORGERIES[forgery](_raw(cluster))
        _put(cluster, forged)
        newcomer = cluster.handler("n1", last_call_s=0.1)
        with pytest.raises(ForgedStateError, match="n1 cannot take part in the job") as caught:
            join([newcomer])
        assert _raw(cluster) == forged
        assert ("pickle" in str(caught.value)) == ("pickle" in forgery)
        assert not HURT
        join([first])


def test_the_agent_with_the_wrong_secret_is_the_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others never notice: their state stays, and no error is logged."""
    monkeypatch.setattr("chicle_elastic.cluster.rendezvous.state_store.HEAL_S", 0.05)
    with party() as cluster:
        handlers = cluster.handlers(2)
        join(handlers)
        stranger = cluster.handler("n2", secret=JobSecret.generate())
        with pytest.raises(SecretError, match="not signed with the secret of this job"):
            join([stranger])
        join(handlers)
        assert not caplog.records


def test_an_older_state_that_is_put_back_is_recognised(caplog: pytest.LogCaptureFixture) -> None:
    """Its signature is right; its serial gives it away."""
    with party() as cluster:
        handlers = cluster.handlers(2)
        join(handlers)
        old = _raw(cluster)
        join(handlers)
        _put(cluster, old)
        join(handlers)
        assert "the state was rolled back to write" in caplog.text


def test_a_round_is_made_while_somebody_keeps_forging() -> None:
    """Members that lose their writes make them again; those that are through look after the state, as agents do."""
    with party() as cluster:
        handlers = cluster.handlers(3)
        join(handlers)
        for _ in range(4):
            futures = [start(handler) for handler in handlers]
            for _ in range(20):
                _put(cluster, b"\x80\x04forged.")
            end_s = time.monotonic() + timeout_s(20)
            while not all(future.done() for future in futures) and time.monotonic() < end_s:
                for index, handler in enumerate(handlers):
                    if futures[index].done() and handler.num_nodes_waiting():
                        futures[index] = start(handler)
                time.sleep(0.01)
            assert {info.world_size for info in results(futures)} == {3}


def test_a_state_of_another_format_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of two versions of Chicle do not guess what the other means."""
    monkeypatch.setattr("chicle_elastic.cluster.rendezvous.state_store.HEAL_S", 0.05)
    with party() as cluster:
        cluster.store.set(STATE_KEY, cluster.secret.sign(STATE_KEY, {"format": 1}).decode())
        with pytest.raises(ForgedStateError, match="has format 1, and this Chicle reads format 3"):
            join([cluster.handler("n0")])


def test_a_cell_is_written_by_one_of_those_who_try_at_once() -> None:
    """This is how the first agent becomes the leader."""
    with party() as cluster:
        cells = [_cell(cluster) for _ in range(4)]
        absent = [cell.read() for cell in cells]
        assert {(reading.raw, reading.value, reading.problem) for reading in absent} == {(None, None, None)}
        won: list[int] = []
        everybody = threading.Barrier(len(cells))

        def write(index: int) -> None:
            everybody.wait()
            if cells[index].is_in_place(cells[index].swap(absent[index], {"lead": index}), {"lead": index}):
                won.append(index)

        threads = [threading.Thread(target=write, args=(index,)) for index in range(len(cells))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [{"lead": index} for index in won] == [cells[0].read().value]


def test_a_value_that_has_no_room_for_all_signatures_is_not_written() -> None:
    """Nobody would read it; whoever changes the secret would find that out when it signs the value by one more key."""
    keys = "\n".join(number.to_bytes(32).hex() for number in range(MAX_KEYS))
    with party() as cluster:
        cell = _cell(cluster)
        many = SignedValue(cluster.handler("n1").entry.store, key=cell.key, secret=JobSecret.from_text(keys, where="x"))
        least = len(many._secret.sign(cell.key, ""))
        text = "x" * (MAX_CELL_BYTES - least)
        with pytest.raises(UsageError, match="does not fit the store's key"):
            cell.swap(cell.read(), text + "xx")
        assert cell.read().raw is None
        cell.swap(cell.read(), text[1:])
        assert many.swap(cell.read(), text).value == text


def _cell(cluster: Party) -> SignedValue:
    return SignedValue(cluster.handler("n0").entry.store, key="chicle/job/lead", secret=cluster.secret)


def _raw(cluster: Party) -> bytes:
    return bytes(cluster.store.get(STATE_KEY))


def _put(cluster: Party, value: bytes) -> None:
    cluster.store.set(STATE_KEY, value)  # type: ignore[arg-type]
