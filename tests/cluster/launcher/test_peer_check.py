"""`chicle doctor --peer` against a real store and real listeners; agents are in tests/cluster/agent/test_addresses."""

import json
import socket
from pathlib import Path

import pytest

from chicle_elastic.cli.main import main
from chicle_elastic.cluster.consensus.term_store import Contact, TermStore
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.ids import NodeId
from chicle_elastic.transports.links import LinkListener
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tls import TlsIdentity
from tests.harness.certificates import OPENSSL, Authority


def peer_findings(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code and findings of `chicle doctor --peer`."""
    code = main(["doctor", "--json", "--peer", *options])
    return code, {finding["topic"]: finding for finding in json.loads(capsys.readouterr().out)}


def test_steps_towards_a_peer_end_where_one_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is none, a port that is closed, a process that is no store."""
    code, findings = peer_findings(capsys, "nowhere.invalid")
    assert (code, list(findings)) == (1, ["name"])
    assert "nowhere.invalid does not resolve" in findings["name"]["detail"]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        code, findings = peer_findings(capsys, f"127.0.0.1:{closed.getsockname()[1]}")
        assert (code, list(findings)) == (1, ["name", "store port"])
        assert "takes no connection" in findings["store port"]["detail"]


def test_agents_are_tried_at_the_addresses_that_they_have_signed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One that has gone, one with another secret behind its address, and a contact of a process without the secret."""
    secret = JobSecret.create(tmp_path / "secret")
    options = ("--secret-file", str(tmp_path / "secret"))
    with StoreServer() as server, socket.socket() as closed:
        code, findings = peer_findings(capsys, server.endpoint, *options)
        assert (code, findings["secret"]["verdict"]) == (0, "-")
        closed.bind(("127.0.0.1", 0))
        store = StoreConnection(server.endpoint).connect()
        terms = TermStore(store, run_id="run", secret=secret)
        with LinkListener("tcp://127.0.0.1:0", JobSecret.generate(), name="n2#1") as other:
            terms.publish(NodeId("n1"), Contact(life="n1#1", address=f"tcp://127.0.0.1:{closed.getsockname()[1]}"))
            terms.publish(NodeId("n2"), Contact(life="n2#1", address=other.address))
            code, findings = peer_findings(capsys, server.endpoint, *options)
        assert code == 1
        assert findings["secret"]["detail"] == "2 agents of the job 'run' have signed with it"
        assert "cannot be reached (Connection refused)" in findings["link n1"]["detail"]
        assert "open the ports of the nodes to each other" in findings["link n1"]["detail"]
        assert "give every node the same secret" in findings["link n2"]["detail"]
        store.compare_set("chicle/run/agent/n3", "", "tcp://127.0.0.1:1")
        code, findings = peer_findings(capsys, server.endpoint, *options)
        assert (code, findings["secret"]["verdict"]) == (1, "no")
        assert "the contact of n3 is not signed" in findings["secret"]["detail"]
        assert "link n3" not in findings


@pytest.mark.skipif(OPENSSL is None, reason="certificates are made by the program openssl")
def test_links_are_tried_by_tls(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that wants TLS from a doctor without, and one with another CA."""
    monkeypatch.setattr("chicle_elastic.cli.job_agents.ANSWER_S", 1.0)
    secret = JobSecret.create(tmp_path / "secret")
    ours = Authority(tmp_path / "ca").issue(tmp_path / "tls")
    other = TlsIdentity(Authority(tmp_path / "other").issue(tmp_path / "n2"))
    options = ("--secret-file", str(tmp_path / "secret"))
    with (
        StoreServer() as server,
        LinkListener("tcp://127.0.0.1:0", secret, name="n1#1", tls=TlsIdentity(ours)) as one,
        LinkListener("tcp://127.0.0.1:0", secret, name="n2#1", tls=other) as two,
    ):
        terms = TermStore(StoreConnection(server.endpoint).connect(), run_id="run", secret=secret)
        terms.publish(NodeId("n1"), Contact(life="n1#1", address=one.address))
        terms.publish(NodeId("n2"), Contact(life="n2#1", address=two.address))
        code, findings = peer_findings(capsys, server.endpoint, *options)
        assert (code, findings["link n1"]["verdict"]) == (1, "no")
        assert "start all nodes of a job with --tls, or none" in findings["link n1"]["detail"]
        code, findings = peer_findings(capsys, server.endpoint, *options, "--tls", str(ours))
        assert (code, findings["tls"]["verdict"]) == (1, "yes")
        assert "did not answer within" in findings["link n1"]["detail"]  # a listener, and no agent behind it
        assert "give all nodes of a job certificates of one CA" in findings["link n2"]["detail"]
        (ours / "tls.key").chmod(0o644)
        assert main(["doctor", "--peer", server.endpoint, *options, "--tls", str(ours)]) == 2
