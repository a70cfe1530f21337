"""Notices of clouds: a thread that asks the metadata server of this machine whether the machine will be taken away.

    AWS    PUT /latest/api/token, then GET /latest/meta-data/spot/instance-action with the token every 5 s: 404 is none,
           else {"action": "terminate", "time": "2026-11-23T08:22:00Z"}. Two minutes.
           https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    GCP    GET /computeMetadata/v1/instance/preempted with `Metadata-Flavor: Google`; with `wait_for_change` and the
           last ETag the server answers when the value changes: TRUE. 30 seconds.
           https://cloud.google.com/compute/docs/metadata/querying-metadata
    Azure  GET /metadata/scheduledevents with `Metadata: true` every 2 s: events Preempt and Terminate that name this
           machine in `Resources`, with `NotBefore`. 30 seconds at least.
           https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events

The servers answer this machine only, by HTTP at a link-local address, so no proxy is asked. A server that does not
answer is reported once, and asked again: the agent goes on, and signals are notices as before. What comes from the
server is read as text and JSON; an answer that is neither counts as none.
"""

import json
import logging
import math
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, Protocol
from urllib.parse import quote

AUTO = "auto"
TOKEN_S = 21_600
AWS_POLL_S = 5.0  # as its documentation asks for
AZURE_POLL_S = 2.0
GCP_POLL_S = 0.5  # beside the waiting of the server; what changes meanwhile has another ETag
GCP_WAIT_S = 60
GCP_NOTICE_S = 30.0
RETRY_S = 10.0
REQUEST_TIMEOUT_S = 5.0
AZURE_TIMEOUT_S = 130.0  # the first request for events may take two minutes
MAX_ANSWER_BYTES = 1 << 20
FAILURES = (OSError, HTTPException, ValueError)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudNotice:
    """A cloud will take this machine."""

    cloud: str
    reason: str
    remaining_s: float  # seconds until then, >= 0


class MetadataServer(Protocol):
    """Of one cloud."""

    cloud: str
    poll_s: float  # seconds between two questions

    def is_here(self) -> bool:
        """Whether the server is that of this cloud. Raises one of `FAILURES` where it does not answer."""

    def poll(self) -> CloudNotice | None:
        """Ask once. Raises one of `FAILURES` where the server does not answer, or not as it should."""


class AwsMetadata:
    """Instance metadata service, version 2."""

    cloud, poll_s = "aws", AWS_POLL_S

    def __init__(self, url: str, wall_clock: Callable[[], float]) -> None:
        self._url, self._wall_clock = url, wall_clock
        self._token: str | None = None

    def is_here(self) -> bool:
        """Of `MetadataServer`."""
        self._renew()
        return True

    def poll(self) -> CloudNotice | None:
        """Of `MetadataServer`."""
        for _ in range(2):
            try:
                text, _headers = _ask(
                    f"{self._url}/latest/meta-data/spot/instance-action",
                    {"X-aws-ec2-metadata-token": self._token or self._renew()},
                )
                break
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 401:
                    raise
                self._token = None  # it has expired
        else:
            raise ValueError("it refuses the token that it has just given")
        answer = _object(text)
        time = _timestamp(datetime.fromisoformat(str(answer["time"])))
        remaining_s = max(0.0, time - self._wall_clock())
        return CloudNotice(cloud=self.cloud, reason=f"{answer['action']} at {answer['time']}", remaining_s=remaining_s)

    def _renew(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
        self._token, _ = _ask(f"{self._url}/latest/api/token", headers, method="PUT")
        return self._token


class GcpMetadata:
    """Metadata server of Compute Engine."""

    cloud, poll_s = "gcp", GCP_POLL_S

    def __init__(self, url: str, wall_clock: Callable[[], float]) -> None:
        self._url = url
        self._etag: str | None = None

    def is_here(self) -> bool:
        """Of `MetadataServer`."""
        _, headers = _ask(f"{self._url}/computeMetadata/v1/instance/id", {"Metadata-Flavor": "Google"})
        return headers.get("Metadata-Flavor") == "Google"

    def poll(self) -> CloudNotice | None:
        """Of `MetadataServer`; waits until the value changes, or for `GCP_WAIT_S`."""
        url, timeout_s = f"{self._url}/computeMetadata/v1/instance/preempted", REQUEST_TIMEOUT_S
        if self._etag is not None:
            url += f"?wait_for_change=true&timeout_sec={GCP_WAIT_S}&last_etag={quote(self._etag)}"
            timeout_s += GCP_WAIT_S
        text, headers = _ask(url, {"Metadata-Flavor": "Google"}, timeout_s=timeout_s)
        self._etag = headers.get("ETag")
        if self._etag is None:
            raise ValueError("its answer has no ETag")
        if text.strip().upper() != "TRUE":
            return None
        return CloudNotice(cloud=self.cloud, reason="preempted", remaining_s=GCP_NOTICE_S)


class AzureMetadata:
    """Instance metadata service and scheduled events."""

    cloud, poll_s = "azure", AZURE_POLL_S

    def __init__(self, url: str, wall_clock: Callable[[], float]) -> None:
        self._url, self._wall_clock = url, wall_clock
        self._name: str | None = None

    def is_here(self) -> bool:
        """Of `MetadataServer`."""
        return bool(self._find_name())

    def poll(self) -> CloudNotice | None:
        """Of `MetadataServer`."""
        name = self._name or self._find_name()
        url = f"{self._url}/metadata/scheduledevents?api-version=2020-07-01"
        text, _ = _ask(url, {"Metadata": "true"}, timeout_s=AZURE_TIMEOUT_S)
        soonest: CloudNotice | None = None
        for event in _object(text).get("Events") or ():
            if event["EventType"] not in ("Preempt", "Terminate") or name not in event["Resources"]:
                continue
            remaining_s = 0.0  # it has begun where there is no time
            if event.get("NotBefore"):
                remaining_s = max(0.0, _timestamp(parsedate_to_datetime(event["NotBefore"])) - self._wall_clock())
            if soonest is None or remaining_s < soonest.remaining_s:
                reason = f"{event['EventType']} not before {event.get('NotBefore') or 'now'}"
                soonest = CloudNotice(cloud=self.cloud, reason=reason, remaining_s=remaining_s)
        return soonest

    def _find_name(self) -> str:
        url = f"{self._url}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        text, _ = _ask(url, {"Metadata": "true"})
        self._name = text.strip()
        return self._name


SERVERS: Mapping[str, tuple[type[AwsMetadata | GcpMetadata | AzureMetadata], str]] = {
    "aws": (AwsMetadata, "http://169.254.169.254"),
    "gcp": (GcpMetadata, "http://metadata.google.internal"),
    "azure": (AzureMetadata, "http://169.254.169.254"),
}
CLOUDS = (*SERVERS, AUTO)  # values of `--notices`


class NoticeWatch:
    """Watches the metadata server in a thread of its own, until it has told of a notice, or is closed.

    Args:
        on_notice: Called with the notice, once, in the thread.
    """

    def __init__(
        self,
        cloud: str,
        on_notice: Callable[[CloudNotice], object],
        *,
        wall_clock: Callable[[], float],
        url: str | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self._cloud, self._on_notice, self._retry_s = cloud, on_notice, retry_s
        names = SERVERS if cloud == AUTO else (cloud,)
        self._servers: list[MetadataServer] = [
            SERVERS[name][0]((url or SERVERS[name][1]).rstrip("/"), wall_clock) for name in names
        ]
        self._is_closed = threading.Event()
        self._is_away = False
        # A daemon: it may wait for an answer for minutes, and must not keep the agent from ending.
        self._thread = threading.Thread(target=self._work, name="chicle-notices", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End the thread when its question is answered; does not wait for that."""
        self._is_closed.set()

    def _work(self) -> None:
        server: MetadataServer | None = self._servers[0] if self._cloud != AUTO else None
        while not self._is_closed.is_set():
            try:
                if server is None:
                    server = self._find()
                notice = server.poll()
            except (*FAILURES, KeyError, TypeError) as error:
                self._report_away(error)
                self._is_closed.wait(self._retry_s)
                continue
            if self._is_away:
                self._is_away = False
                logger.info("the metadata server of %s answers again", server.cloud)
            if notice is not None and not self._is_closed.is_set():
                logger.warning("%s takes this machine: %s", notice.cloud, notice.reason)
                self._on_notice(notice)
                return
            self._is_closed.wait(server.poll_s)

    def _find(self) -> MetadataServer:
        """The server that answers. Raises OSError when none does."""
        problems = []
        for server in self._servers:
            try:
                if server.is_here():
                    logger.info("notices come from the metadata server of %s", server.cloud)
                    return server
                problems.append(f"{server.cloud}: another server answers")
            except FAILURES as error:
                problems.append(f"{server.cloud}: {error}")
        raise OSError("; ".join(problems))

    def _report_away(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            logger.warning(
                "the metadata server (--notices %s) does not answer as it should: %s: %s; it is asked again "
                "every %g s, and a signal is a notice as well",
                self._cloud,
                type(error).__name__,
                error,
                self._retry_s,
            )


def grace_of(notice: CloudNotice, *, reserve_s: float, least_s: float = 1.0) -> float:
    """Seconds in which a node has to hand its chunks over: what remains, less what its end in order takes."""
    return max(least_s, notice.remaining_s - reserve_s) if math.isfinite(notice.remaining_s) else least_s


def _ask(
    url: str, headers: Mapping[str, str], *, method: str = "GET", timeout_s: float = REQUEST_TIMEOUT_S
) -> tuple[str, Mapping[str, str]]:
    """Text and headers of an answer."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return answer.read(MAX_ANSWER_BYTES).decode(), answer.headers
    except urllib.error.HTTPError as error:
        error.close()
        raise


def _object(text: str) -> dict[str, Any]:
    """A JSON object."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"its answer is no JSON object: {text[:80]!r}")
    return value


def _timestamp(time: datetime) -> float:
    """Seconds since 1970; a time without a zone is UTC."""
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
