"""The server's first word at a place of a session: what the others need beforehand to make their machines.

A call decides nothing. A client takes what it agrees to from its own plan, its order and the pinned keys; a
call that does not fit these has a cohort whose signatures do not fit together. Calls are the transport's own
words, like its envelopes: a network that loses messages loses none of them, and no column of bytes counts
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from securefl.algorithm.queries import Sum, ValueSpec
from securefl.algorithm.weighing import Weights
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.linear import LinearBounds, Range
from securefl.core.release import SERVER
from securefl.core.wire import Header, Limit, decode, encode, message, peek
from securefl.linear.scheme import Questions

T = TypeVar("T")


@message("ask-call", version=2, sender="server")
@dataclass(frozen=True, kw_only=True)
class QueryCall:
    """An exchange of orders, numbers and sums in the clear begins.

    Attributes:
        most_bytes, most_elements: the most that an order or a broadcast of it holds.
        names, hidden, runs, ranges, bounds, cohort: what is public of numbers that travel concealed
            (`linear.Questions`): of `LinearBounds` the hidden length, the count of each run of clear
            entries, low and high of each, and the other seven numbers. Without names no number does.
        key: the key holder's answer to its own call, which says its key. Empty in that call.
    """

    most_bytes: int
    most_elements: int
    names: tuple[str, ...] = ()
    hidden: int = 0
    runs: tuple[int, ...] = ()
    ranges: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()
    cohort: int = 0
    key: bytes = b""

    @classmethod
    def of(cls, most: Limit, asked: Questions | None, key: bytes = b"") -> QueryCall:
        if asked is None:
            return cls(most_bytes=most.bytes, most_elements=most.elements)
        own = asked.bounds
        return cls(
            most_bytes=most.bytes,
            most_elements=most.elements,
            names=asked.names,
            hidden=own.hidden_length,
            runs=tuple(run.count for run in own.clear),
            ranges=tuple(end for run in own.clear for end in (run.low, run.high)),
            bounds=(
                own.norm,
                own.weight_norm,
                own.row_norm,
                own.product,
                own.scale,
                own.least,
                own.most,
            ),
            cohort=asked.cohort,
            key=key,
        )

    def questions(self) -> Questions | None:
        """None where no number is concealed. RemoteProtocolError for what no server says."""
        if not self.names:
            return None
        try:
            # A ConfigError would accuse this party's own configuration. What is wrong in a call came from the
            # server.
            if self.cohort < 0:
                raise ConfigError(f"Expected a cohort, got {self.cohort}.")
            lows, highs = self.ranges[::2], self.ranges[1::2]
            norm, weight_norm, row_norm, product, scale, least, most = self.bounds
            bounds = LinearBounds(
                hidden_length=self.hidden,
                clear=tuple(Range(*run) for run in zip(self.runs, lows, highs, strict=True)),
                norm=norm,
                weight_norm=weight_norm,
                row_norm=row_norm,
                product=product,
                scale=scale,
                least=least,
                most=most,
            )
            return Questions(self.names, bounds, self.cohort)
        except (ConfigError, ValueError) as error:
            raise RemoteProtocolError(
                f"Expected a call for scores, got another: {error}", sender=SERVER
            ) from None


@message("sum-call", version=3, sender="server")
@dataclass(frozen=True, kw_only=True)
class SumCall:
    """An attempt at a hidden sum begins.

    Attributes:
        members: numbers of who is called, ascending.
        draws: of the cohort that was ordered, in the order of its numbers. whole, records: as the order has
            them. Clients have all three from their orders.
        names, lengths: of the vectors.
        initial, number, again: of the questions; clients have them from their orders.
        task: digest of what the cohort was told, as the server tells it.
        key: the key holder's key of this attempt, as it said it. Empty if the attempt has none.
    """

    members: tuple[int, ...]
    draws: tuple[int, ...]
    whole: int
    records: int
    names: tuple[str, ...]
    lengths: tuple[int, ...]
    initial: int
    number: int
    again: int
    task: bytes
    key: bytes = b""

    def sums(self, contributions: dict[str, ValueSpec]) -> tuple[Sum, ...]:
        """The vectors, as offered. RemoteProtocolError for a name that nobody offers as a sum."""
        # Checked here, where the server is to blame. Inside a machine the same would look like this party's
        # error.
        fits = len(self.names) == len(self.lengths) > 0 and min(self.lengths) >= 1
        fits = fits and len(set(self.names)) == len(self.names)
        known = all(name in contributions and contributions[name].reduction == "sum" for name in self.names)
        # each stands in the signed agreement as four bytes
        counts = (self.whole, self.records, self.initial, self.number, self.again, *self.draws)
        counts_fit = all(0 <= one < 2**31 for one in counts) and not (self.initial and self.number)
        counts_fit = counts_fit and len(self.draws) > 0 and not (self.whole and self.records)
        if not fits or not known or len(self.task) != 32 or not counts_fit:
            raise RemoteProtocolError(
                f"Expected sums among {sorted(contributions)} with a length each, got {self.names}.",
                sender=SERVER,
            )
        return tuple(
            Sum(contributions[name], size) for name, size in zip(self.names, self.lengths, strict=True)
        )

    @property
    def weights(self) -> Weights:
        """What the server says that its order said."""
        return Weights(self.draws, self.whole, self.records)


_LAST = 2**16
"""Above every stage and attempt, which travel in two bytes each."""
_MOST = Limit(2**26, 2**21)
"""The largest call: it holds a key and a cohort."""


def encode_call(header: Header, call: QueryCall | SumCall) -> bytes:
    """The bytes of a call."""
    return encode(header, call)


def last_place(number: int) -> tuple[int, int, int]:
    """The last place of a round; of round 0, what is before every place."""
    return (number, _LAST, _LAST) if number else (0, 0, -1)


def decode_call(
    data: bytes, session: bytes, after: tuple[int, int, int]
) -> tuple[Header, QueryCall | SumCall]:
    """A call of this session, at a later place than the last.

    Raises RemoteProtocolError for another session, a place that is over, and other bytes than a call's.
    """
    header = peek(data, SERVER)
    if header.session != session:
        raise RemoteProtocolError(
            "Expected a call of the session that was entered, got one of another session.", sender=SERVER
        )
    # Two machines at one place would draw from one secret. A call that is repeated gets none.
    if header.place() <= after:
        raise RemoteProtocolError(
            f"Expected a place after {after}, got {header.place()}: places go up.", sender=SERVER
        )
    kinds: dict[type[Any], Limit] = {QueryCall: _MOST, SumCall: _MOST}
    return header, decode(data, header, kinds, SERVER)
