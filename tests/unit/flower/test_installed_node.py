"""A node of an installed app: what it answers, what it tells of errors, and which Flower it speaks with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.run import RunNotRunningException
from httpx import ConnectTimeout
from support.every import every
from support.grid_double import GridDouble

from securefl.core.errors import ConfigError
from securefl.flower import installed
from securefl.flower.exchange import UNANSWERED
from securefl.flower.installed import Node, pause, serve_node

assert GridDouble  # imported for its identity of this process, without which Flower makes no message
SECRET = "record 7 is 0.25"


class SuperLink:
    """Messages for one node, as the bytes that a connection carries, and what it sends back."""

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)
        self._own: dict[str, bytes] = {}
        self._came: dict[str, bytes] = {}
        self._trees: list[Any] = []
        self.confirmed: list[str] = []
        self.lost: Callable[[str], None] = lambda name: None

    def link(self) -> tuple[Any, ...]:
        return (7, self.receive, self.send, None, None, self.pull, self.push, self.confirm)

    def receive(self) -> Any:
        if not self._messages:
            return None
        message = self._messages.pop(0)
        tree = get_object_tree(message)
        self._own |= {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
        message.metadata.__dict__["_message_id"] = tree.object_id
        return remove_content_from_message(message), tree

    def pull(self, run: int, name: str) -> bytes:
        self.lost(name)
        return self._own[name]

    def confirm(self, run: int, name: str) -> None:
        self.confirmed.append(name)

    def send(self, message: Message, tree: Any, took: float) -> tuple[set[str], str]:
        self._trees.append(tree)
        return set(get_all_nested_objects(message)) | _names(tree), "session"

    def push(self, run: int, session: str, name: str, content: bytes) -> None:
        self._came[name] = content

    @property
    def replies(self) -> list[Message]:
        return [
            pull_and_inflate_object_from_tree(
                tree, dict(self._came).__getitem__, lambda name: None, return_type=Message
            )
            for tree in self._trees
        ]


def _names(tree: Any) -> set[str]:
    return {tree.object_id}.union(*map(_names, tree.children))


def asked(number: int) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"n": number})}), 7, "train")


def counting() -> ClientApp:
    """Adds up, in the state of its context, what it was sent."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        own = context.state.setdefault("sum", MetricRecord({"n": 0}))
        own["n"] += message.content["metrics"]["n"]
        if own["n"] > 10:
            raise ValueError(SECRET)
        return Message(RecordDict({"metrics": MetricRecord(dict(own))}), reply_to=message)

    return app


def played(link: SuperLink) -> list[bool]:
    node = Node(counting(), link.link(), {"party": "client-0000"}, {})
    turns = [node.answer()]
    while turns[-1]:
        turns.append(node.answer())
    return turns


@every("call", ["receive", "pull", "confirm", "send", "push"])
def test_no_slow_handshake_loses_a_message_or_computes_it_twice(call: str) -> None:
    link = SuperLink(asked(1), asked(2))
    real, times = getattr(link, call), [0]

    def slow(*words: Any) -> Any:
        times[0] += 1
        if times[0] == 1:
            raise ConnectTimeout("_ssl.c:989: The handshake operation timed out")
        return real(*words)

    setattr(link, call, slow)
    assert played(link) == [True, True, False]
    assert [reply.content["metrics"]["n"] for reply in link.replies] == [1, 3]


def test_an_app_stays_loaded_and_its_replies_name_what_they_answer() -> None:
    link = SuperLink(asked(1), asked(2))
    assert played(link) == [True, True, False]
    assert [reply.content["metrics"]["n"] for reply in link.replies] == [1, 3]
    assert [reply.metadata.reply_to_message_id for reply in link.replies] == link.confirmed


def test_no_text_of_the_app_reaches_the_server(caplog: pytest.LogCaptureFixture) -> None:
    link = SuperLink(asked(11))
    played(link)
    (reply,) = link.replies
    assert reply.error.reason == UNANSWERED
    assert SECRET not in str(link._came)
    assert SECRET in caplog.text, "the node's owner reads it"


@every("error", [KeyError("gone"), RunNotRunningException()])
def test_a_message_that_does_not_come_whole_costs_itself(error: BaseException) -> None:
    link, gone = SuperLink(asked(1), asked(2)), list[str]()

    def lost(name: str) -> None:
        if not gone:
            gone.append(name)
            raise error

    link.lost = lost
    assert played(link) == [True, True, False]
    assert [reply.content["metrics"]["n"] for reply in link.replies] == [2]


def started(key: Path) -> None:
    serve_node(counting(), superlink="127.0.0.1:1", root_certificates=Path("ca.pem"), key=key, node_config={})


def test_another_version_of_flower_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installed, "version", lambda name: "1.41.1")
    with pytest.raises(ConfigError, match=r"1\.41\.0.*got 1\.41\.1"):
        started(tmp_path / "key")


def test_a_key_that_is_none_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got none"):
        started(tmp_path / "key")
    other = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "key").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    with pytest.raises(ConfigError, match="ECDSA"):
        started(tmp_path / "key")


def test_a_node_that_waits_long_looks_less_often() -> None:
    assert [pause(idle) for idle in (0.0, 1.0, 10.0, 30.0, 3600.0)] == [0.1, 0.1, 1.0, 3.0, 3.0]
