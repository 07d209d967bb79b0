"""What conceals the numbers of one Ask, as the server begins it: the key holder is called first."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.algorithm.queries import Ask, Each
from securefl.core.errors import CryptoError
from securefl.core.release import KEY_HOLDER
from securefl.core.wire import Header
from securefl.engine.calls import AskCall, said
from securefl.engine.exchange import limits
from securefl.engine.transport import Transport
from securefl.linear import Questions, Scoring
from securefl.linear.way import ServerSide, Tell


@dataclass(frozen=True)
class Scores:
    """What conceals the numbers of one Ask. fits: whether there is a key; if not, only `others` are asked."""

    scoring: Scoring | None = None
    asked: Questions | None = None
    key: bytes = b""
    fits: bool = True
    others: tuple[Each, ...] = ()


NO_SCORES = Scores()


def begin(side: ServerSide | None, ask: Ask, header: Header, transport: Transport, tell: Tell) -> Scores:
    """What the numbers of this Ask are concealed with. The key holder is called first, for its key."""
    concealed = {each.sends.name: each.query for each in ask.each if each.query is not None}
    if side is None or not concealed:
        return NO_SCORES
    asked, (told, _) = Questions.of(concealed, len(ask.cohort)), limits(ask, 0)
    key = transport.call([KEY_HOLDER], said(header, AskCall.of(told, asked))).get(KEY_HOLDER, b"")
    try:
        scoring = side.begin(concealed, len(ask.cohort), header, key, tell)
    except CryptoError:  # to ask would cost budgets, and open nothing
        tell(KEY_HOLDER, "It gave no key of its own, so nobody was asked for a number.")
        return Scores(fits=False, others=tuple(each for each in ask.each if each.query is None))
    return Scores(scoring, asked, key)
