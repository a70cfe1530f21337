"""A job by TLS: links and chunks between hosts, and nodes that are refused while it goes on."""

from pathlib import Path

import pytest

from tests.harness.certificates import OPENSSL, Authority
from tests.hosts.job import START_S, Job
from tests.hosts.lab import Lab

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(OPENSSL is None, reason="certificates are made by the program openssl"),
]


class TlsJob(Job):
    """A job whose nodes have options of their own."""

    def __init__(self, lab: Lab, options: dict[str, tuple[str, ...]]) -> None:
        self._options = options
        super().__init__(lab)

    def arguments(self, name: str) -> list[str]:
        """Those of the node in front."""
        return [*self._options[name], *super().arguments(name)]


def test_nodes_join_by_tls_and_strangers_are_refused(lab: Lab, tmp_path: Path) -> None:
    """Of another CA, without TLS, with chunks that are not encrypted, expired: each ends with a line and its reason."""
    ours, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    members = ("n1", "n2", "n3")

    def tls(authority: Authority, name: str, *, is_expired: bool = False) -> tuple[str, str]:
        return "--tls", str(authority.issue(tmp_path / "tls" / name, is_expired=is_expired))

    job = TlsJob(
        lab,
        {
            **{name: (*tls(ours, name), "--tls-bulk") for name in members},
            "foreign": (*tls(other, "foreign"), "--tls-bulk"),
            "plain": (),
            "half": tls(ours, "half"),
            "expired": (*tls(ours, "expired", is_expired=True), "--tls-bulk"),
        },
    )
    first, second = job.start_members("n1", "n2")
    (third,) = (job.start(host) for host in lab.boot("n3"))
    job.wait_for_members([first, second, third])  # it has chunks that came by TLS
    strangers = [job.start(host) for host in lab.boot("foreign", "plain", "half", "expired")]
    words = {
        "foreign": (1, "does not accept (", "give all nodes of a job certificates of one CA"),
        "plain": (1, "with TLS only", "start all nodes of a job with --tls, or none"),
        "half": (1, "tls_bulk is None at half", "start all nodes alike"),
        "expired": (2, "certificate has expired", "renew it"),
    }
    for stranger in strangers:
        code, why, remedy = words[stranger.name]
        assert stranger.process.wait(START_S) == code, job.describe(f"{stranger} is not refused")
        assert why in stranger.process.text()
        assert remedy in stranger.process.text()
    job.wait_for_progress([first, second, third])
    job.end([first, second, third])
