"""A Grid within this process: nodes are functions of messages, and what becomes of their replies is chosen.

Time is counted in looks: every look of the server for replies is a tenth of a second later than the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

# Flower sets it in the processes that it starts; nobody can make a message without.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

Node = Callable[[Message], Message]
Fate = Callable[[int, Message], Iterable[tuple[int, Message]]]
"""From a node and its reply to what arrives, and after how many looks."""


def at_once(node: int, reply: Message) -> list[tuple[int, Message]]:
    return [(0, reply)]


def silent(node: int, reply: Message) -> list[tuple[int, Message]]:
    return []


def twice(node: int, reply: Message) -> list[tuple[int, Message]]:
    return [(0, reply), (0, reply)]


def late(node: int, reply: Message) -> list[tuple[int, Message]]:
    return [(10**6, reply)]


def failing(node: int, reply: Message) -> list[tuple[int, Message]]:
    """As an app that raised: Flower sends the text along."""
    error = Message(Error(2, "<class 'ValueError'>:<'record 7 is 0.25'>"), reply_to=reply)
    error.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return [(0, error)]


def from_another(node: int, reply: Message) -> list[tuple[int, Message]]:
    """As where Flower answers for a node that it lost: the source is another."""
    reply.metadata.__dict__["_src_node_id"] = 1
    return [(0, reply)]


@dataclass
class GridDouble(Grid):
    """Nodes by id, and the fate of each one's replies; those of others arrive at once.

    Attributes:
        seen: every message as it went out.
        meddle: is given each message on its way to a node, and returns what arrives, or None.
    """

    nodes: Mapping[int, Node]
    fates: dict[int, Fate] = field(default_factory=dict)
    meddle: Callable[[int, Message], Message | None] = lambda node, message: message
    seen: list[Message] = field(default_factory=list)
    now: float = 0.0
    _waiting: list[tuple[float, Message]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.seen)}"
            message.metadata.__dict__["_src_node_id"] = 1
            self.seen.append(deepcopy(message))
            ids.append(message.metadata.message_id)
            node = message.metadata.dst_node_id
            arrives = self.meddle(node, deepcopy(message))
            if arrives is None:
                continue
            reply = deepcopy(self.nodes[node](arrives))
            reply.metadata.__dict__["_message_id"] = f"reply {len(self.seen)}"
            fate = self.fates.get(node, at_once)
            self._waiting += [(self.now + 0.1 * looks, one) for looks, one in fate(node, reply)]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = set(message_ids)
        found = [
            one for at, one in self._waiting if at <= self.now and one.metadata.reply_to_message_id in wanted
        ]
        self._waiting = [(at, one) for at, one in self._waiting if not any(one is own for own in found)]
        return found
