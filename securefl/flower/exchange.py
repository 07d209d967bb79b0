"""The server's side over Flower: a wave goes out as messages, and the replies in time come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import Final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from httpx import HTTPError

from securefl.core.errors import RemoteProtocolError
from securefl.core.logs import logger
from securefl.flower.envelopes import unwrapped, wrapped

FRAME: Final = "query.securefl_frame"
"""The type of messages that carry a frame."""
_POLL: Final = 0.1
_log = logger(__name__)


class GridExchange:
    """`exchange` over a Grid: what `engine.apart.waves.Waves` sends its frames through.

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
