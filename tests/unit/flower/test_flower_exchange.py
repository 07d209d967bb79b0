"""Frames through Flower's Grid: whoever is silent, fails, lies about its source, answers twice or late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from httpx import ConnectError
from support.every import every
from support.grid_double import Fate, GridDouble, failing, from_another, late, silent, twice
from support.superlink_double import SLOW, SuperLink

from securefl.core.errors import RemoteProtocolError
from securefl.flower import records
from securefl.flower.exchange import FRAME, UNANSWERED, GridExchange, relay
from securefl.flower.records import unwrapped, wrapped

NODES = {"client-0000": 10, "client-0001": 11, "client-0002": 12}
REQUESTS = {name: f"to {name}".encode() for name in NODES}


def node(name: str, ask: Callable[[bytes], bytes] = lambda request: b"said " + request) -> Any:
    return lambda message: relay(message, name, ask)


def double(**fates: Fate) -> GridDouble:
    return GridDouble(
        {number: node(name) for name, number in NODES.items()},
        fates={NODES[name]: fate for name, fate in fates.items()},
    )


def exchange(grid: GridDouble, deadline: float = 5.0) -> GridExchange:
    return GridExchange(grid, NODES, deadline=deadline, clock=grid.clock, pause=grid.pause)


def test_everybody_is_asked_and_heard() -> None:
    grid = double()
    assert exchange(grid)(REQUESTS) == {name: b"said to " + name.encode() for name in NODES}
    assert grid.now == 0
    assert {message.metadata.ttl for message in grid.seen} == {5.0}


@every("fate", [silent, late, failing])
def test_who_does_not_answer_well_and_in_time_was_silent(fate: Fate) -> None:
    grid = GridDouble({k: node(name) for name, k in NODES.items()}, fates={11: fate})
    assert set(exchange(grid)(REQUESTS)) == {"client-0000", "client-0002"}
    assert grid.now == pytest.approx(0 if fate is failing else 5.0, abs=0.2)


@every("fate", [twice, from_another])
def test_a_reply_counts_once_and_for_the_request_that_it_answers(fate: Fate) -> None:
    grid = GridDouble({k: node(name) for name, k in NODES.items()}, fates={11: fate})
    assert exchange(grid)(REQUESTS)["client-0001"] == b"said to client-0001"


def test_what_is_late_is_not_taken_for_an_answer_to_the_next_request() -> None:
    grid = GridDouble(
        {k: node(name) for name, k in NODES.items()}, fates={11: lambda who, reply: [(60, reply)]}
    )
    waves = exchange(grid)
    assert "client-0001" not in waves(REQUESTS)
    grid.fates.clear()
    assert waves({**REQUESTS, "client-0001": b"new"})["client-0001"] == b"said new"
    grid.now += 60
    assert waves({"client-0001": b"newer"}) == {"client-0001": b"said newer"}


def test_a_try_ends_at_a_reply_that_is_not_there_and_the_last_one_looks_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fates = {10: silent, 11: silent, 12: lambda who, reply: [(4.95, reply)]}
    grid = GridDouble({k: node(name) for name, k in NODES.items()}, fates=fates)
    pulls, pull = [], grid.pull_messages
    monkeypatch.setattr(grid, "pull_messages", lambda ids: pulls.append(ids) or pull(ids))
    assert exchange(grid)(REQUESTS) == {"client-0002": b"said to client-0002"}
    assert 50 <= len(pulls) <= 55, "one in each of 50 tries, and all in the last one"


def test_a_reply_that_flower_cannot_read_costs_nobody_else_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = double()
    pull = grid.pull_messages

    def pulled(ids: Any) -> Any:
        found = pull(ids)
        if any(one.metadata.src_node_id == 11 for one in found):
            raise ValueError("Unexpected set of `children`.")
        return found

    monkeypatch.setattr(grid, "pull_messages", pulled)
    assert set(exchange(grid)(REQUESTS)) == {"client-0000", "client-0002"}


def test_a_superlink_that_is_gone_ends_the_run_and_not_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = double()

    def gone(ids: Any) -> Any:
        raise ConnectError("gone")

    monkeypatch.setattr(grid, "pull_messages", gone)
    with pytest.raises(ConnectError):
        exchange(grid)(REQUESTS)


@every(
    "call",
    ["get-nodes", "push-messages", "push-object", "pull-messages", "pull-object", "confirm-message-received"],
)
def test_a_call_whose_handshake_took_too_long_is_made_again_and_no_request_gets_a_second_id(
    call: str,
) -> None:
    with SuperLink(node("client-0000"), 10) as link:
        asking = GridExchange(link.grid, {"client-0000": 10}, deadline=60.0)
        link.errors[call] = [SLOW, SLOW]
        assert asking({"client-0000": b"one"}, entering=True) == {"client-0000": b"said one"}
        assert not link.errors[call], "tried"
        assert len(link.accepted) == len(link.delivered) == 1


def test_a_superlink_whose_certificate_is_not_the_pinned_one_is_not_tried_again() -> None:
    with SuperLink(node("client-0000"), 10) as link:
        link.errors["push-messages"] = [
            ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
        ]
        with pytest.raises(ConnectError, match="certificate"):
            GridExchange(link.grid, {"client-0000": 10}, deadline=60.0)({"client-0000": b"one"})


def test_slow_calls_do_not_stretch_a_wave_by_their_number_and_each_request_lives_until_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = double()
    push = grid.push_messages

    def slow(messages: Any) -> Any:
        grid.now += 3.0
        return push(messages)

    monkeypatch.setattr(grid, "push_messages", slow)
    assert set(exchange(grid)(REQUESTS)) == {"client-0000", "client-0001"}
    assert grid.now == 6.0
    assert [message.metadata.ttl for message in grid.seen] == [5.0, 2.0]


def test_a_party_without_a_node_is_silent() -> None:
    assert exchange(double())({"client-0009": b"x"}) == {}


def test_a_deadline_is_needed() -> None:
    for deadline in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="deadline of some seconds"):
            exchange(double(), deadline)


@pytest.mark.parametrize("error", [ValueError("record 7 is 0.25"), OSError("no /secret/socket"), KeyError(7)])
def test_nothing_of_an_error_reaches_the_server(error: Exception, caplog: Any) -> None:
    def ask(request: bytes) -> bytes:
        raise error

    message = Message(wrapped(b"x"), 10, FRAME)
    reply = relay(message, "client-0000", ask)
    assert reply.has_error()
    assert reply.error.reason == UNANSWERED
    assert str(error) in caplog.text  # for the node's own operator


@every("kind", ["train", "query.securefl_frames", "evaluate.x"])
def test_a_relay_passes_on_frames_alone(kind: str) -> None:
    asked: list[bytes] = []
    reply = relay(Message(wrapped(b"x"), 10, kind), "client-0000", lambda data: asked.append(data) or b"")
    assert reply.has_error()
    assert not asked


# Envelopes ------------------------------------------------------------------------------------------


@every("size", [0, 1, 99_999, 100_000, 3_000_000])
def test_a_frame_comes_back_as_it_went(size: int) -> None:
    frame = bytes(range(256)) * (size // 256 + 1)
    assert unwrapped(wrapped(frame[:size]), sender="a") == frame[:size]


OTHERS = [
    RecordDict(),
    RecordDict({"securefl": ConfigRecord({})}),
    RecordDict({"securefl": ConfigRecord({"frame": "text"})}),
    RecordDict({"securefl": ConfigRecord({"frame": [b"a", b"b"]})}),
    RecordDict({"securefl": ConfigRecord({"frame": b"a", "more": b"b"})}),
    RecordDict({"securefl": MetricRecord({"frame": 1.0})}),
    RecordDict({"other": ConfigRecord({"frame": b"a"})}),
    RecordDict({"securefl": ConfigRecord({"frame": b"a"}), "more": ConfigRecord({"frame": b"a"})}),
]


@every("content", OTHERS)
def test_other_content_is_refused(content: RecordDict) -> None:
    with pytest.raises(RemoteProtocolError, match="one frame"):
        unwrapped(content, sender="a")


def test_a_frame_that_claims_two_gibibytes_is_what_it_holds() -> None:
    array = Array(dtype="float64", shape=(2**28,), stype="numpy.ndarray", data=b"abc")
    assert unwrapped(RecordDict({"securefl": ArrayRecord({"frame": array})}), sender="a") == b"abc"


def test_a_frame_above_the_bound_is_neither_sent_nor_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    content = wrapped(b"x" * 200_000)
    monkeypatch.setattr(records, "MOST", 150_000)
    with pytest.raises(ValueError, match="at most 150000"):
        wrapped(b"x" * 200_000)
    with pytest.raises(RemoteProtocolError, match="at most 150000"):
        unwrapped(content, sender="a")


# Who stands for whom --------------------------------------------------------------------------------


def looking(grid: GridDouble, pause: Any = None) -> dict[str, int]:
    own = GridExchange(grid, deadline=60, clock=grid.clock, pause=pause or grid.pause)
    return own.look(set(NODES), 60)


def test_nodes_say_which_party_they_stand_for() -> None:
    grid = double()
    assert looking(grid) == NODES


def test_a_node_that_says_nothing_or_a_strange_name_stands_for_nobody() -> None:
    grid = GridDouble(
        {10: node("client-0000"), 11: node("client-9999"), 12: lambda m: Message(RecordDict(), reply_to=m)}
    )
    assert looking(grid) == {"client-0000": 10}
    assert grid.now >= 60


def test_two_nodes_that_say_one_name_cost_that_party_alone_its_place(caplog: Any) -> None:
    grid = GridDouble({10: node("client-0000"), 11: node("client-0000"), 12: node("client-0001")})
    assert looking(grid) == {"client-0001": 12}
    assert "Several nodes name client-0000" in caplog.text


def test_a_node_that_comes_later_is_found() -> None:
    grid = double()
    nodes = dict(grid.nodes)
    grid.nodes = {10: nodes[10]}

    def pause(seconds: float) -> None:
        grid.pause(seconds)
        grid.nodes = nodes if grid.now > 5 else grid.nodes

    assert looking(grid, pause) == NODES
