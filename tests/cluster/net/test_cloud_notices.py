"""Notices of clouds, from a server that speaks their protocols: what counts, with which time, and what is ignored."""

import contextlib
import logging
import queue
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from chicle_elastic.cluster.net.cloud_notices import CloudNotice, NoticeWatch, grace_of
from tests.cluster.net.metadata_server import MetadataServer, metadata_server
from tests.timeouts import comes, timeout_s

NOW = datetime(2026, 11, 23, 8, 20, tzinfo=UTC)
LATER = datetime(2026, 11, 23, 8, 22, tzinfo=UTC)
ACTION = "/latest/meta-data/spot/instance-action"
PREEMPTED = "/instance/preempted"
EVENTS = "/metadata/scheduledevents"
Notices = queue.SimpleQueue[CloudNotice]


@contextlib.contextmanager
def watch(cloud: str, url: str) -> Iterator[Notices]:
    """A watch whose clock stands still, and which tries again at once."""
    notices: Notices = queue.SimpleQueue()
    watching = NoticeWatch(cloud, notices.put, wall_clock=NOW.timestamp, url=url, retry_s=0.01)
    watching.start()
    try:
        yield notices
    finally:
        watching.close()


@pytest.fixture
def serve() -> Iterator[Callable[[str], MetadataServer]]:
    """Starts servers."""
    with contextlib.ExitStack() as stack:
        yield lambda cloud: stack.enter_context(metadata_server(cloud))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions follow each other quickly."""
    monkeypatch.setattr("chicle_elastic.cluster.net.cloud_notices.AwsMetadata.poll_s", 0.01)
    monkeypatch.setattr("chicle_elastic.cluster.net.cloud_notices.AzureMetadata.poll_s", 0.01)


def event(kind: str, *resources: str, not_before: datetime | None = None) -> dict[str, object]:
    """A scheduled event of Azure."""
    return {
        "EventId": "f020ba2e-3bc0-4c40-a10b-86575a9eabd5",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [*resources],
        "EventStatus": "Scheduled" if not_before else "Started",
        "NotBefore": format_datetime(not_before, usegmt=True) if not_before else "",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


def test_aws_has_none_until_there_is_an_action(serve: Callable[[str], MetadataServer]) -> None:
    """404 is none; then the time counts."""
    server = serve("aws")
    with watch("aws", server.url) as notices:
        server.wait_for_requests(3, ACTION)
        assert notices.empty()
        server.action = {"action": "terminate", "time": "2026-11-23T08:22:00Z"}
        notice = notices.get(timeout=timeout_s(30))
    assert notice == CloudNotice(cloud="aws", reason="terminate at 2026-11-23T08:22:00Z", remaining_s=120.0)
    assert server.num_requests("/latest/api/token") == 1


def test_a_token_of_aws_that_has_expired_is_renewed(serve: Callable[[str], MetadataServer]) -> None:
    """The server says 401."""
    server = serve("aws")
    with watch("aws", server.url) as notices:
        server.wait_for_requests(2, ACTION)
        server.tokens.clear()
        server.wait_for_requests(2, "/latest/api/token")
        server.action = {"action": "stop", "time": "2026-11-23T08:19:00Z"}
        assert notices.get(timeout=timeout_s(30)).remaining_s == 0.0


def test_gcp_answers_when_the_value_changes(serve: Callable[[str], MetadataServer]) -> None:
    """The second question waits; it has the ETag of the first answer."""
    server = serve("gcp")
    with watch("gcp", server.url) as notices:
        server.wait_for_requests(2, PREEMPTED)
        assert notices.empty()
        assert "wait_for_change=true" in server.paths[-1]
        server.preempt()
        notice = notices.get(timeout=timeout_s(30))
    assert notice == CloudNotice(cloud="gcp", reason="preempted", remaining_s=30.0)
    assert server.num_requests(PREEMPTED) == 2


def test_a_machine_that_gcp_has_taken_before_the_first_question_learns_it(
    serve: Callable[[str], MetadataServer],
) -> None:
    """The first question does not wait for a change, which has been."""
    server = serve("gcp")
    server.preempt()
    with watch("gcp", server.url) as notices:
        assert notices.get(timeout=timeout_s(30)).reason == "preempted"


def test_azure_events_of_other_machines_and_kinds_do_not_count(serve: Callable[[str], MetadataServer]) -> None:
    """Of those of this machine the soonest does."""
    server = serve("azure")
    server.events = [event("Preempt", "pool_4", not_before=NOW), event("Freeze", "pool_3", not_before=NOW)]
    with watch("azure", server.url) as notices:
        server.wait_for_requests(3, EVENTS)
        assert notices.empty()
        server.events = [
            *server.events,
            event("Terminate", "pool_3", not_before=LATER),
            event("Preempt", "pool_2", "pool_3", not_before=datetime(2026, 11, 23, 8, 20, 30, tzinfo=UTC)),
        ]
        notice = notices.get(timeout=timeout_s(30))
    assert notice.cloud == "azure"
    assert notice.reason.startswith("Preempt not before Mon, 23 Nov 2026 08:20:30")
    assert notice.remaining_s == 30.0


def test_an_azure_event_that_has_begun_leaves_no_time(serve: Callable[[str], MetadataServer]) -> None:
    """It has no time any more."""
    server = serve("azure")
    server.events = [event("Preempt", "pool_3")]
    with watch("azure", server.url) as notices:
        assert notices.get(timeout=timeout_s(30)).remaining_s == 0.0


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_auto_finds_the_cloud_whose_server_answers(cloud: str, serve: Callable[[str], MetadataServer]) -> None:
    """The others refuse what they do not know."""
    server = serve(cloud)
    server.action = {"action": "terminate", "time": "2026-11-23T08:22:00Z"}
    server.events = [event("Preempt", "pool_3", not_before=LATER)]
    server.preempt()
    with watch("auto", server.url) as notices:
        assert notices.get(timeout=timeout_s(30)).cloud == cloud


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure", "auto"])
def test_a_server_that_is_away_is_reported_once_and_asked_again(
    cloud: str, serve: Callable[[str], MetadataServer], caplog: pytest.LogCaptureFixture
) -> None:
    """The agent goes on; when the server is back, its notice counts."""
    server = serve("azure" if cloud == "auto" else cloud)
    server.is_down = True
    with caplog.at_level(logging.INFO), watch(cloud, server.url) as notices:
        with server.changed:
            assert server.changed.wait_for(lambda: len(server.paths) >= 12, timeout_s(30))
        assert notices.empty()
        server.action = {"action": "terminate", "time": "2026-11-23T08:22:00Z"}
        server.events = [event("Preempt", "pool_3", not_before=LATER)]
        server.preempt()
        server.is_down = False
        assert notices.get(timeout=timeout_s(30)).remaining_s > 0
    told = [record.getMessage() for record in caplog.records if "does not answer as it should" in record.getMessage()]
    assert len(told) == 1
    assert f"--notices {cloud}" in told[0]


@pytest.mark.parametrize(
    "action", [{"action": "terminate"}, {"action": "terminate", "time": "soon"}, {"time": "2026-11-23T08:22:00Z"}]
)
def test_an_answer_without_sense_is_none(action: dict[str, str], serve: Callable[[str], MetadataServer]) -> None:
    """It neither ends the thread nor counts as a notice."""
    server = serve("aws")
    server.action = action
    with watch("aws", server.url) as notices:
        server.wait_for_requests(3, ACTION)
        assert notices.empty()
        server.action = {"action": "terminate", "time": "2026-11-23T08:22:00Z"}
        assert notices.get(timeout=timeout_s(30)).remaining_s == 120.0


def test_a_port_that_is_closed_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """As on a machine of no cloud."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        with watch("auto", f"http://127.0.0.1:{closed.getsockname()[1]}") as notices:
            assert comes(lambda: "does not answer as it should" in caplog.text, 30)
            assert notices.empty()


def test_a_grace_period_ends_before_the_machine_does() -> None:
    """By what an end in order takes, and never before it has begun."""
    notice = CloudNotice(cloud="aws", reason="", remaining_s=120.0)
    assert grace_of(notice, reserve_s=5.0) == 115.0
    assert grace_of(CloudNotice(cloud="aws", reason="", remaining_s=0.0), reserve_s=5.0) == 1.0
