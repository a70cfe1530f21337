"""The job secret is changed while its store holds values, some of processes that have ended."""

from pathlib import Path

import pytest

from chicle_elastic.cluster.rendezvous.secret_watch import SecretWatch
from chicle_elastic.cluster.rendezvous.signed_value import SignedValue
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.transports.secret import JobSecret
from tests.timeouts import comes

KEYS = ["ab" * 32, "cd" * 32]


def secret_of(*keys: str) -> JobSecret:
    """The secret of these keys."""
    return JobSecret.from_text("\n".join(keys), where="a test")


def test_what_an_ended_process_has_signed_outlives_its_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch signs it anew before the old key goes; what a stranger wrote it leaves alone, and a bad file too."""
    monkeypatch.setattr("chicle_elastic.cluster.rendezvous.secret_watch.LOOK_S", 0.1)
    path = tmp_path / "job.secret"
    path.touch(0o600)
    path.write_text(KEYS[0])
    secret = JobSecret.load(path)
    with StoreServer() as server:
        store = StoreConnection(server.endpoint).connect()

        def read(*keys: str) -> object:
            return SignedValue(store, key="job/ended", secret=secret_of(*keys)).read().value

        ended = SignedValue(store, key="job/ended", secret=secret_of(KEYS[0]))
        ended.swap(ended.read(), {"life": "n1#1"})
        store.compare_set("job/foreign", "", "of a stranger")
        with SecretWatch(secret, path, store, owner="n0"):
            path.write_text("\n".join([KEYS[0], "cafe"]))
            assert comes(lambda: f"line 2 of the secret file {path}" in caplog.text)
            assert read(KEYS[1]) is None
            path.chmod(0o644)
            path.write_text("\n".join(KEYS))
            assert comes(lambda: "mode 0644" in caplog.text)
            path.chmod(0o600)
            assert comes(lambda: read(KEYS[1]))
            assert read(KEYS[0]) == read(KEYS[1]) == {"life": "n1#1"}
            path.write_text(KEYS[1])
            assert comes(lambda: not secret.has_signed("x", secret_of(KEYS[0]).sign("x", 1)))
            assert comes(lambda: secret.has_signed("x", secret_of(KEYS[1]).sign("x", 1)))
        assert store.compare_set("job/foreign", "", "") == b"of a stranger"
