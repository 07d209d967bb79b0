"""Transport over Flower's Grid: the server sends frames to nodes, and a node relays them to its party.

Each node itself states which party it relays for. A registered node can lie about its party, and can then be
silent in the party's place, as any network can. It does not have the party's keys, which the roster pins. So
its messages in a hidden sum verify under no signature, and it cannot open shares that others encrypt for the
party. If sums or numbers are in the clear, no key protects a value: then the server must trust the registered
nodes.

A relay reads no frame, and has none of the party's files. A frame that it drops is silence, and a frame that
it changes is refused. If an attacker ships other code to the node, it controls the relay and nothing more, as
long as the party runs under another user.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from time import monotonic, sleep
from typing import Final

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.retry import RetryInvoker
from httpx import ConnectTimeout, HTTPError

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.logs import logger
from securefl.flower.records import unwrapped, wrapped

FRAME: Final = "query.securefl_frame"
"""The type of messages that carry a frame."""
ENTERING: Final = 120.0
"""Seconds for a wave of requests to enter. Stock nodes start a process for each message."""
_POLL: Final = 0.1
_log = logger(__name__)


def _outlasting(invoker: RetryInvoker) -> None:
    """Let Flower's client make a call again after a TLS handshake that took too long.

    Flower does so after every other lost connection, and gives up here, since it takes the error's text for
    that of a bad certificate. Nothing of this call was sent. Only at this level is that true: one message is
    several calls, and a new message would be a second one for the SuperLink and for the party.
    """
    gives_up = invoker.should_giveup or (lambda error: False)
    invoker.should_giveup = lambda error: not isinstance(error, ConnectTimeout) and gives_up(error)


class GridExchange:
    """An `exchange` over Flower's Grid, for `deployment.transport.RemoteTransport`: frames to
    parties, replies back. Requests to enter look for nodes first.

        >>> from securefl.flower import GridExchange
        >>> exchange = GridExchange(grid=None, nodes={}, deadline=5.0)
        >>> exchange({"client-0000": b"a frame"})  # no node relays for this party, so it is silent
        {}

    Args:
        grid: Flower's, or an object with its methods.
        nodes: the known nodes by party. A party without a node is silent.
        deadline: seconds that a wave may take. A party that has not replied by then is silent. While the
            SuperLink is away, Flower waits for it, and the wave with it. A wave of requests to enter takes
            120 seconds at most.
        say: prints why a party has no node, once, until it is no longer so. By default the log gets a
            warning.
        clock, pause: read and wait for seconds; tests inject others.

    Two nodes that name one party are both left out. A node that Flower lost is forgotten, and may come back
    under another number. A node that replies with an error is silent too. Its text is neither trusted nor
    shown. A reply belongs to the request whose id it has, whatever node it names as its source. A second
    reply, and a reply after its wave, is dropped.

    Raises:
        ValueError: the deadline is not positive and finite.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Mapping[str, int] | None = None,
        *,
        deadline: float,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        if not 0 < deadline < float("inf"):
            raise ValueError(f"Expected a deadline of some seconds for each wave, got {deadline}.")
        self._grid, self._say, self._noted = grid, say or _log.warning, set[str]()
        self._known = {node: name for name, node in (nodes or {}).items()}
        self._deadline, self._entering = deadline, min(ENTERING, deadline)
        self._clock, self._pause = clock, pause
        if isinstance(invoker := getattr(grid, "_retry_invoker", None), RetryInvoker):
            _outlasting(invoker)

    @property
    def nodes(self) -> dict[str, int]:
        """The node of each party; none where two nodes name the same party."""
        # Their statements do not show which of them reaches the party.
        names = list(self._known.values())
        return {name: node for node, name in self._known.items() if names.count(name) == 1}

    def __call__(self, requests: Mapping[str, bytes], entering: bool = False) -> dict[str, bytes]:
        """Send each party its request. Returns the replies that came in time, by party.

        entering: whether they are requests to enter. Then it first looks for the parties' nodes.
        """
        if entering:
            self.look(requests)
        nodes = self.nodes
        posted = {name: (nodes[name], wrapped(data)) for name, data in requests.items() if name in nodes}
        replies: dict[str, bytes] = {}
        came = self._asked(FRAME, posted, self._entering if entering else self._deadline)
        for name, content in came.items():
            try:
                replies[name] = unwrapped(content, sender=name)
            except RemoteProtocolError as error:
                _log.warning("%s: %s", name, error)
        return replies

    def look(self, names: Collection[str], patience: float = 0.0) -> dict[str, int]:
        """Look for the nodes of these parties, until all have one or the patience of some seconds is over.

        Returns the nodes of these parties that have one.
        """
        for _ in self._tries(self._clock() + patience, _PAUSE):
            here = set(self._grid.get_node_ids())
            self._known = {node: name for node, name in self._known.items() if node in here}
            if missing := set(names) - set(self.nodes):
                self._known |= self._greeted(here - set(self._known))
                missing -= set(self.nodes)
            if not missing:
                break
        notes = {
            f"Several nodes name {name}, so none is used: stop all but one."
            if name in self._known.values()
            else f"No node of {name} is connected to the SuperLink."
            for name in missing
        }
        for note in sorted(notes - self._noted):
            self._say(note)
        self._noted = notes
        return {name: node for name, node in self.nodes.items() if name in names}

    def _greeted(self, nodes: Iterable[int]) -> dict[int, str]:
        """The party of each of these nodes that answers; empty if it names none."""
        posted = {str(node): (node, stating()) for node in nodes}
        answers = self._asked(HELLO, posted, min(_PATIENCE, self._entering / 2))
        named = {int(node): _stated(content, "party") for node, content in answers.items()}
        return {node: name if isinstance(name, str) else "" for node, name in named.items()}

    def partitions(self, patience: float) -> int:
        """The number of nodes of a simulation, asked of one node after the other until one says it.

        Raises ConfigError if none has said it within `patience` seconds.
        """
        for _ in self._tries(self._clock() + patience, _PAUSE):
            for node in self._grid.get_node_ids():
                posted = {"a node": (node, stating())}
                found = self._asked(SIMULATION, posted, min(_PATIENCE, patience))
                count = _stated(found.get("a node", RecordDict()), "nodes")
                if type(count) is int and 1 <= count <= _MOST_NODES:
                    return count
        raise ConfigError(
            f"Expected a simulated node that runs a secured app, got none within {patience:g} s. Wrap the "
            "ClientApp, `app = secure(app)`. In a deployment name the server's folder in the run config, "
            "securefl.server."
        )

    def _tries(self, end: float, pause: float) -> Iterator[None]:
        """Once, and again after each pause until this time."""
        yield
        while self._clock() < end:
            self._pause(pause)
            yield

    def _asked(
        self, kind: str, posted: Mapping[str, tuple[int, RecordDict]], deadline: float
    ) -> dict[str, RecordDict]:
        """Send each node its content. Returns the contents of the replies in time, by the same names."""
        end = self._clock() + deadline
        waiting, late = dict[str, str](), list[str]()
        for name, (node, content) in posted.items():
            if (left := end - self._clock()) <= 0:
                late.append(name)
                continue
            # One at a time: Flower leaves messages that it could not send out of its list of ids, and one
            # message that is too large fails all others of its list.
            message = Message(content, node, kind, ttl=left)
            waiting |= {sent: name for sent in self._grid.push_messages([message]) if sent}
        replies: dict[str, RecordDict] = {}
        # A loop of our own, because Flower's polls only every three seconds.
        for _ in self._tries(end, _POLL):
            for sent in list(waiting):
                who = waiting.pop(sent)
                reply = _pulled(self._grid, sent, who)
                if reply is None:
                    # Last in the next try, so that a lost node holds up nobody. Each pull costs the SuperLink
                    # CPU. The last tries look for all: a reply lives no longer than its request, to the end.
                    waiting[sent] = who
                    if self._clock() < end - _POLL:
                        break
                    continue
                if reply.has_error():
                    _log.warning("%s: its node answered with Flower's error %d", who, reply.error.code)
                elif reply.has_content():
                    replies[who] = reply.content
            if not waiting:
                break
        for name in (*late, *waiting.values()):
            _log.warning("%s: no answer within %g s", name, deadline)
        return replies


def _pulled(grid: Grid, sent: str, who: str) -> Message | None:
    """The reply to the message of this id, or None if there is none yet."""
    # One at a time: a node can send bytes that Flower cannot read. That fails the whole pull, and replies
    # of other nodes in it would be lost.
    try:
        found = list(grid.pull_messages([sent]))
    except HTTPError:  # the SuperLink does not answer, which is no node's fault
        raise
    except Exception as error:  # Flower's decoders raise ValueError, KeyError and protobuf's errors
        _log.warning("%s: Flower could not read its reply (%s)", who, type(error).__name__)
        return None
    # Matched by id and not by source, since Flower itself replies for a node that it lost.
    return next((one for one in found if one.metadata.reply_to_message_id == sent), None)


HELLO: Final = "query.securefl_hello"
"""The type of messages that ask a node for its party, which the reply states as `party`."""
SIMULATION: Final = "query.securefl_simulation"
"""The type of messages that ask a simulated node for the number of all nodes, stated as `nodes`."""
_RECORD: Final = "securefl"
_MOST_NODES: Final = 2**20
_PATIENCE: Final = 30.0
_PAUSE: Final = 0.5


def stating(**words: str | int) -> RecordDict:
    """The content of a message with these words; a question has none."""
    return RecordDict({_RECORD: ConfigRecord(dict(words))})


def _stated(content: RecordDict, word: str) -> object:
    """What a reply says under this word. None if it says nothing."""
    record = content.get(_RECORD)
    return record.get(word) if isinstance(record, ConfigRecord) else None


UNANSWERED: Final = "The party gave no answer."
CODE: Final = 2
"""Flower's error code of an app that raised an exception."""


def relay(message: Message, name: str, ask: Callable[[bytes], bytes]) -> Message:
    """Relay a message of the server to a node's party, and make the node's reply.

        >>> from flwr.app import Message, RecordDict
        >>> from flwr.supercore.task_identity import TaskIdentity
        >>> from securefl.flower import relay
        >>> TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # an app has them
        >>> hello = Message(RecordDict(), 1, "query.securefl_hello")
        >>> relay(hello, "client-0000", ask=lambda request: b"").content["securefl"]["party"]
        'client-0000'

    Args:
        message: a hello, or one with a frame.
        name: the party that this node relays for.
        ask: gives the party a request frame, and returns its reply frame.

    Returns:
        The reply. After any error it has the constant text UNANSWERED, and the reason is in the node's log.

    Raises nothing.
    """
    kind = message.metadata.message_type
    # Flower sends the text of an exception to the server, and such a text may reveal records. So no exception
    # leaves this function.
    try:
        if kind == HELLO:
            return Message(stating(party=name), reply_to=message)
        if kind == FRAME:
            return Message(wrapped(ask(unwrapped(message.content, sender="server"))), reply_to=message)
        _log.warning("Expected a message of type %s or %s, got %s.", FRAME, HELLO, kind)
    except Exception as error:
        _log.warning("%s: no answer: %s", name, error)
    return Message(Error(CODE, UNANSWERED), reply_to=message)
