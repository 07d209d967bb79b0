"""A SuperLink behind Flower's own HttpGrid and HTTP client. Chosen calls do not connect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Self

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    GetNodesResponse,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid
from httpx import Client, ConnectTimeout, MockTransport, Request, Response

SLOW = ConnectTimeout("_ssl.c:989: The handshake operation timed out")
"""As the ssl module says it: Flower takes the text for an error of TLS."""


class SuperLink:
    """A SuperLink with one node, which answers a message once all its objects came.

    Attributes:
        grid: Flower's own, connected to it.
        errors: what the next calls of a name raise in place of a connection.
        accepted: the ids of messages that it took.
        delivered: those whose objects came whole. A reply is given out once, as Flower's own does.
    """

    def __init__(self, node: Callable[[Message], Message], number: int) -> None:
        self._node, self._number = node, number
        self._objects: dict[str, bytes] = {}
        self._given: set[str] = set()
        self.accepted: dict[str, list[str]] = {}
        self.errors = defaultdict[str, list[Exception]](list)
        self.grid = HttpGrid(insecure=True, token="token")
        self.grid._run = Run.create_empty(1)
        self.grid._retry_invoker.jitter = lambda seconds: 0.0
        client = self.grid._runtime_client
        client._client.close()
        client._client = Client(transport=MockTransport(self._answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.grid.close()

    @property
    def delivered(self) -> list[str]:
        return [sent for sent, names in self.accepted.items() if self._objects.keys() >= set(names)]

    def _answer(self, request: Request) -> Response:
        call = request.url.path.rpartition("/")[2]
        if self.errors[call]:
            raise self.errors[call].pop()
        answer = getattr(self, "_" + call.replace("-", "_"))(request.content)
        return Response(200, content=answer.SerializeToString())

    def _get_nodes(self, content: bytes) -> Any:
        return GetNodesResponse(nodes=[NodeInfo(node_id=self._number)])

    def _push_messages(self, content: bytes) -> Any:
        request = PushAppMessagesRequest.FromString(content)
        for message, tree in zip(request.messages_list, request.message_object_trees, strict=True):
            self.accepted[message.metadata.message_id] = [one.object_id for one in iterate_object_tree(tree)]
        ids = [message.metadata.message_id for message in request.messages_list]
        missing = {name for sent in ids for name in self.accepted[sent]} - self._objects.keys()
        return PushAppMessagesResponse(message_ids=ids, objects_to_push=missing, session_id="session")

    def _push_object(self, content: bytes) -> Any:
        request = PushObjectRequest.FromString(content)
        self._objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def _pull_messages(self, content: bytes) -> Any:
        found = PullAppMessagesResponse()
        for sent in PullAppMessagesRequest.FromString(content).message_ids:
            if sent in self._given or sent not in self.delivered:
                continue
            self._given.add(sent)
            message = inflate_object_from_contents(
                sent, {name: self._objects[name] for name in self.accepted[sent]}
            )
            message.metadata.__dict__["_message_id"] = sent
            reply = self._node(message)
            tree = get_object_tree(reply)
            self._objects |= {name: one.deflate() for name, one in get_all_nested_objects(reply).items()}
            reply.metadata.__dict__["_message_id"] = tree.object_id
            found.messages_list.append(message_to_proto(remove_content_from_message(reply)))
            found.message_object_trees.append(tree)
        return found

    def _pull_object(self, content: bytes) -> Any:
        found = self._objects[PullObjectRequest.FromString(content).object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=found)

    def _confirm_message_received(self, content: bytes) -> Any:
        return ConfirmMessageReceivedResponse()
