"""What a job believes of its resource manager: lies are left out with a line, one that raises is not asked again."""

import pytest

from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managed_nodes import PATIENCE_S, ManagedNodes, ResourceNews
from chicle_elastic.resources.managers import Assigned, Revoked
from chicle_elastic.values import ResourceOffer

A, B, C = map(NodeId, "abc")


class Script:
    """A resource manager that says what the test has written down."""

    def __init__(self, *said: object) -> None:
        self.says = [list(each) if isinstance(each, tuple) else [each] for each in said]
        self.heard: list[tuple[object, ...]] = []

    def request(self, total: int, reason: str) -> None:
        self.heard.append(("request", total, reason))

    def release(self, node: NodeId) -> None:
        self.heard.append(("release", node))

    def poll(self, now_s: float) -> list[object]:
        return self.says.pop(0) if self.says else []


def news_of(said: object, *, nodes: tuple[NodeId, ...] = (A,), wanted: int | None = None) -> ResourceNews:
    """What comes of one thing that a manager says to a job with these nodes."""
    managed = ManagedNodes(Script((), said))  # type: ignore[arg-type]
    managed.poll(0.0, nodes)
    if wanted is not None:
        managed.request(wanted, "the test")
    return managed.poll(1.0, nodes)


def test_what_can_be_is_handed_on() -> None:
    """Nodes, notices and offers; an offer that is the same is none."""
    manager = Script((Assigned(A), ResourceOffer(available=2)), (ResourceOffer(available=2),), (Revoked(A, 30.0),), ())
    managed = ManagedNodes(manager)  # type: ignore[arg-type]
    first = managed.poll(0.0, ())
    assert (first.assigned, first.offer, first.lines) == ([A], ResourceOffer(available=2), [])
    assert not managed.poll(1.0, (A,))
    assert managed.poll(2.0, (A,)).revoked == [Revoked(A, 30.0)]
    assert not managed.poll(3.0, ())
    managed.request(3, "more")
    managed.request(3, "more")
    managed.released(A)
    assert manager.heard == [("request", 3, "more"), ("release", A)]


@pytest.mark.parametrize(
    ("said", "wanted", "says"),
    [
        (Assigned(B), 1, "assigned b, which the job has not asked for (1 wanted, 1 here); it is given back"),
        (Assigned(A), None, "assigned a, which the job has; it is left out"),
        (Assigned(NodeId("")), None, "which is no name of a node"),
        (Assigned(None), None, "which is no name of a node"),  # type: ignore[arg-type]
        (Revoked(C), None, "revoked c, which the job does not have"),
        (Revoked(A, -1.0), None, "revoked a within -1.0 s, which cannot be"),
        (Revoked(A, float("nan")), None, "which cannot be"),
        (ResourceOffer(available=-1), None, "offered -1 nodes"),
        (ResourceOffer(available=True), None, "offered True nodes"),
        (ResourceOffer(price=float("inf")), None, "which cannot be"),
        ("nodes!", None, "said 'nodes!', which is left out"),
    ],
)
def test_lies_are_left_out(said: object, wanted: int | None, says: str) -> None:
    """With a line for each."""
    news = news_of(said, wanted=wanted)
    assert (news.assigned, news.revoked, news.offer) == ([], [], None)
    (line,) = news.lines
    assert says in line
    assert line.startswith("the resource manager ")


def test_a_node_that_was_not_asked_for_is_given_back() -> None:
    """Only those beyond the number are."""
    manager = Script((), (Assigned(B), Assigned(C)))
    managed = ManagedNodes(manager)  # type: ignore[arg-type]
    managed.request(2, "two")
    managed.poll(0.0, (A,))
    assert managed.poll(1.0, (A,)).assigned == [B]
    assert manager.heard[-1] == ("release", C)


def test_a_node_that_is_revoked_as_soon_as_it_is_assigned_never_was() -> None:
    """And one that is revoked twice is revoked once."""
    news = news_of((Assigned(B), Revoked(B), Revoked(A), Revoked(A)))
    assert (news.assigned, [each.node for each in news.revoked], news.lines) == ([], [A], [])


@pytest.mark.parametrize(("available", "says"), [(0, "has no more now"), (1, "has 1 more now")])
def test_a_request_that_is_denied_is_said_once(available: int, says: str) -> None:
    """The offer tells what there is."""
    managed = ManagedNodes(Script((ResourceOffer(available=available),)))  # type: ignore[arg-type]
    managed.poll(0.0, (A,))
    managed.request(4, "more")
    (line,) = managed.poll(1.0, (A,)).lines
    assert line.startswith("4 nodes are wanted and 1 here")
    assert says in line
    assert [managed.poll(now, (A,)).lines for now in (2.0, 3.0)] == [[], []]


def test_a_request_that_is_forgotten_is_said_once() -> None:
    """After a while in which the manager had nodes, or did not say."""
    managed = ManagedNodes(Script((ResourceOffer(available=3),)))  # type: ignore[arg-type]
    managed.poll(0.0, (A,))
    managed.request(4, "more")
    assert managed.poll(1.0, (A,)).lines == []
    (line,) = managed.poll(2.0 + PATIENCE_S, (A,)).lines
    assert "4 nodes were wanted 61 s ago and 1 are here" in line
    assert managed.poll(3.0 + PATIENCE_S, (A,)).lines == []


@pytest.mark.parametrize("method", ["request", "release", "poll"])
def test_a_manager_that_raises_is_not_asked_again(method: str) -> None:
    """The line names what it raised, and the job goes on with what it has."""

    class Broken(Script):
        pass

    def fail(*_: object) -> None:
        raise RuntimeError("the queue is down")

    setattr(Broken, method, fail)
    manager = Broken((Assigned(B),), (Assigned(C),))
    managed = ManagedNodes(manager)  # type: ignore[arg-type]
    managed.request(5, "more")
    managed.released(A)
    lines = [*managed.poll(0.0, (A,)).lines, *managed.poll(1.0, (A,)).lines]
    assert len([line for line in lines if "not asked any more" in line]) == 1
    assert f"{method} raised RuntimeError: the queue is down" in lines[0]
    assert not managed.poll(2.0, (A,)).assigned
