"""Bytes over Flower's grid: the server's waves out and the replies in time back, and a node's relay between.

Which node stands for which party the nodes say themselves. A registered node may lie about its party. What it
gains is what any network has: it can be silent in the party's place. It has not the party's keys, which the
roster pins, so what it sends in a hidden sum fits to no signature, and what others hide for the party it
cannot open. Where sums or numbers are in the clear, no key stands behind a value: there the word of a node
counts, and with it who may register nodes.

A relay reads no frame, and has none of the party's files. What it does not pass on is silence, what it
changes is refused. Whoever ships other code to the node has a liar for a relay, and no more than that, as
long as the party runs under a user of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from time import monotonic, sleep
from typing import Final

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid
from httpx import HTTPError

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.logs import logger
from securefl.flower.records import unwrapped, wrapped

FRAME: Final = "query.securefl_frame"
"""The type of messages that carry a frame."""
_POLL: Final = 0.1
_log = logger(__name__)


class GridExchange:
    """`exchange` over a Grid: what `engine.apart.remote_transport.RemoteTransport` sends its frames through.

    Args:
        grid: Flower's, or whatever has its methods.
        nodes: the node that stands for each party. A party without one is silent.
        deadline: seconds that a wave may take. Whoever has not answered by then was silent.
        clock, pause: of the seconds since any moment; injected in tests.

    A node that answers with an error was silent, too: its text is not believed, and not shown. A reply counts
    for the request whose id it bears, whichever node it says it is from. A second reply, and one that comes
    after its wave, is dropped.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Mapping[str, int],
        *,
        deadline: float,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        if not 0 < deadline < float("inf"):
            raise ValueError(f"Expected a deadline of some seconds for each wave, got {deadline}.")
        self._nodes = dict(nodes)
        self._post = Post(grid, deadline=deadline, clock=clock, pause=pause)

    def __call__(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Give each party its request. Returns the replies that came in time, by party."""
        posted = {
            name: (self._nodes[name], wrapped(data)) for name, data in requests.items() if name in self._nodes
        }
        replies: dict[str, bytes] = {}
        for name, content in self._post.asked(FRAME, posted).items():
            try:
                replies[name] = unwrapped(content, sender=name)
            except RemoteProtocolError as error:
                _log.warning("%s: %s", name, error)
        return replies


class Post:
    """Messages to nodes and their replies, under a deadline of ours. Arguments as for GridExchange."""

    def __init__(
        self,
        grid: Grid,
        *,
        deadline: float,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._grid, self._deadline, self._clock, self._pause = grid, deadline, clock, pause

    def asked(self, kind: str, posted: Mapping[str, tuple[int, RecordDict]]) -> dict[str, RecordDict]:
        """Send each its content. Returns the contents that came back in time, by the same names."""
        end = self._clock() + self._deadline
        waiting: dict[str, str] = {}
        for name, (node, content) in posted.items():
            # One at a time: Flower leaves out of its list of ids whatever it could not send, and a message
            # that is too large for it takes all others of its list along.
            message = Message(content, node, kind, ttl=self._deadline)
            waiting |= {sent: name for sent in self._grid.push_messages([message]) if sent}
        replies: dict[str, RecordDict] = {}
        # The loop is ours, since Flower's own looks only every three seconds.
        while waiting:
            for sent, who in list(waiting.items()):
                reply = self._pulled(sent, who)
                if reply is None:
                    continue
                del waiting[sent]
                if reply.has_error():
                    _log.warning("%s: its node answered with Flower's error %d", who, reply.error.code)
                elif reply.has_content():
                    replies[who] = reply.content
            if not waiting or self._clock() >= end:
                break
            self._pause(_POLL)
        for name in waiting.values():
            _log.warning("%s: no answer within %g s", name, self._deadline)
        return replies

    def _pulled(self, sent: str, who: str) -> Message | None:
        """The reply to the message of this id; None as long as there is none."""
        # One at a time. A node can send what Flower itself cannot read. That ends the whole of a pull, and
        # replies of others that came with it would be lost.
        try:
            found = list(self._grid.pull_messages([sent]))
        except HTTPError:  # the SuperLink does not answer, which is no node's doing
            raise
        except Exception as error:  # its decoders let ValueError, KeyError and protobuf's own through
            _log.warning("%s: Flower could not read its reply (%s)", who, type(error).__name__)
            return None
        # By id and not by source: a node that Flower lost is answered for by another.
        return next((one for one in found if one.metadata.reply_to_message_id == sent), None)


HELLO: Final = "query.securefl_hello"
"""The type of messages that ask a node for its party."""
_RECORD, _PARTY = "securefl", "party"
_PATIENCE: Final = 30.0
_PAUSE: Final = 0.5


def said(name: str) -> RecordDict:
    """A node's answer to a hello: the party that it stands for."""
    return RecordDict({_RECORD: ConfigRecord({_PARTY: name})})


def found(
    grid: Grid,
    names: Collection[str],
    *,
    deadline: float,
    clock: Callable[[], float] = monotonic,
    pause: Callable[[float], None] = sleep,
) -> dict[str, int]:
    """Ask every node for its party, until all of `names` have one or `deadline` seconds are over.

    Returns the nodes by party, of `names` alone. A party whose node has not said so in time is absent.
    Raises ConfigError where two nodes say that they stand for the same party.
    """
    post = Post(grid, deadline=min(_PATIENCE, deadline), clock=clock, pause=pause)
    end, known = clock() + deadline, dict[int, str]()
    while True:
        new = [node for node in grid.get_node_ids() if node not in known]
        hello = RecordDict({_RECORD: ConfigRecord({})})
        for node, content in post.asked(HELLO, {str(node): (node, hello) for node in new}).items():
            known[int(node)] = _name(content)
        nodes = _by_party(known, names)
        if len(nodes) == len(names) or clock() >= end:
            return nodes
        pause(_PAUSE)


def _name(content: RecordDict) -> str:
    record = content.get(_RECORD)
    name = record.get(_PARTY) if isinstance(record, ConfigRecord) else None
    return name if isinstance(name, str) else ""


def _by_party(known: dict[int, str], names: Collection[str]) -> dict[str, int]:
    nodes: dict[str, int] = {}
    for node, name in sorted(known.items()):
        if name not in names:
            continue
        if name in nodes:
            # Neither is taken: which of them reaches the party cannot be told from their words.
            raise ConfigError(
                f"Expected one node for {name}, got two that say so: {nodes[name]} and {node}. "
                "Stop the one that does not stand beside this party."
            )
        nodes[name] = node
    return nodes


UNANSWERED: Final = "The party gave no answer."
CODE: Final = 2
"""Flower's, for an app that raised an exception."""


def relay(message: Message, name: str, ask: Callable[[bytes], bytes]) -> Message:
    """A node's reply to a message of the server.

    Args:
        name: the party that this node stands for.
        ask: gives the party a request, and returns its reply.

    Whatever goes wrong, the server is told UNANSWERED and no more.
    """
    kind = message.metadata.message_type
    # Flower sends the text of an exception to the server, and the texts of errors may tell of records. So
    # none leaves here, whatever it is.
    try:
        if kind == HELLO:
            return Message(said(name), reply_to=message)
        if kind == FRAME:
            return Message(wrapped(ask(unwrapped(message.content, sender="server"))), reply_to=message)
        _log.warning("Expected a message of type %s or %s, got another.", FRAME, HELLO)
    except Exception as error:
        _log.warning("%s: no answer: %s", name, error)
    return Message(Error(CODE, UNANSWERED), reply_to=message)
