"""A node's side over Flower: bytes between a message and whoever answers for the party.

A relay reads no frame, and has none of the party's files. What it does not pass on is silence, what it
changes is refused. Whoever ships other code to the node has a liar for a relay, and no more than that, as
long as the party runs under a user of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flwr.app import Error, Message

from securefl.core.logs import logger
from securefl.flower.envelopes import unwrapped, wrapped
from securefl.flower.exchange import FRAME
from securefl.flower.nodes import HELLO, said

UNANSWERED: Final = "The party gave no answer."
CODE: Final = 2
"""Flower's, for an app that raised an exception."""
_log = logger(__name__)


def relayed(message: Message, name: str, ask: Callable[[bytes], bytes]) -> Message:
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
