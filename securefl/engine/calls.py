"""Calls: the message with which the server starts an exchange or a hidden sum at each party.

A call carries the sizes, names and keys from which a party makes its machine. It has no authority. A client
takes every parameter from its plan, its order and the pinned keys. If a call disagrees, signatures do not
verify together and no sum opens. Calls belong to the transport, like its packets: a simulated network with
faults loses none of them, and traffic counts do not include them.
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


@message("ask-call", version=3, sender="server")
@dataclass(frozen=True, kw_only=True)
class QueryCall:
    """Starts an exchange of orders, numbers and sums in the clear.

    Attributes:
        most_bytes, most_elements: the limits of the exchange's orders and broadcasts.
        names, hidden, runs, ranges, bounds, cohort: the public parameters of encrypted numbers
            (`linear.Questions`): of `LinearBounds` the hidden length, the count of each run of clear
            entries, low and high of each, and the other seven numbers. Without names, no number is encrypted.
        weight_runs, weight_ranges: of the same bounds, the ranges of the hidden weights.
        weights: the digests of the queries' weights, if the scheme binds numbers to them.
        key: the key holder's reply to its own call, which holds its key. Empty in that call.
    """

    most_bytes: int
    most_elements: int
    names: tuple[str, ...] = ()
    hidden: int = 0
    runs: tuple[int, ...] = ()
    ranges: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()
    weight_runs: tuple[int, ...] = ()
    weight_ranges: tuple[float, ...] = ()
    weights: tuple[bytes, ...] = ()
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
            weight_runs=tuple(run.count for run in own.weights),
            weight_ranges=tuple(end for run in own.weights for end in (run.low, run.high)),
            weights=asked.weights,
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
        """The encrypted numbers' public parameters, or None if no number is encrypted.

        Raises RemoteProtocolError if they are not valid.
        """
        if not self.names:
            return None
        try:
            # A ConfigError would blame this party's own configuration, but the server made the call.
            if self.cohort < 0:
                raise ConfigError(f"Expected a cohort, got {self.cohort}.")
            norm, weight_norm, row_norm, product, scale, least, most = self.bounds
            bounds = LinearBounds(
                hidden_length=self.hidden,
                clear=_ranges(self.runs, self.ranges),
                weights=_ranges(self.weight_runs, self.weight_ranges),
                norm=norm,
                weight_norm=weight_norm,
                row_norm=row_norm,
                product=product,
                scale=scale,
                least=least,
                most=most,
            )
            return Questions(self.names, bounds, self.cohort, self.weights)
        except (ConfigError, ValueError) as error:
            raise RemoteProtocolError(
                f"Expected a call for scores, got another: {error}", sender=SERVER
            ) from None


def _ranges(runs: tuple[int, ...], ends: tuple[float, ...]) -> tuple[Range, ...]:
    return tuple(Range(*run) for run in zip(runs, ends[::2], ends[1::2], strict=True))


@message("sum-call", version=3, sender="server")
@dataclass(frozen=True, kw_only=True)
class SumCall:
    """Starts an attempt at a hidden sum.

    Attributes:
        members: numbers of the clients that are called, ascending.
        draws: of all clients of the order's cohort, in the order of their numbers. whole, records: as in the
            order. Clients take all three from their orders.
        names, lengths: of the vectors.
        initial, number, again: of the query. Clients take them from their orders.
        task: digest of the order and broadcast, as the server states it.
        key: the key holder's key of this attempt, as it sent it. Empty if the attempt has none.
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
        """The vectors by their specs. Raises RemoteProtocolError if a name is not a sum that clients have."""
        # Checked here, where the error names the server. Inside a machine it would look like this party's
        # error.
        fits = len(self.names) == len(self.lengths) > 0 and min(self.lengths) >= 1
        fits = fits and len(set(self.names)) == len(self.names)
        known = all(name in contributions and contributions[name].reduction == "sum" for name in self.names)
        # The signed agreement holds each of them in four bytes.
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
        """The weights that the server states in this call; its order stated them before."""
        return Weights(self.draws, self.whole, self.records)


_LAST = 2**16
"""Above every stage and attempt, which have two bytes each on the wire."""
_MOST = Limit(2**26, 2**21)
"""The limit of a call, which holds a key and a cohort."""


def encode_call(header: Header, call: QueryCall | SumCall) -> bytes:
    """Encode a call."""
    return encode(header, call)


def last_place(number: int) -> tuple[int, int, int]:
    """The last place of a round. Round 0 gives the place before all places."""
    return (number, _LAST, _LAST) if number else (0, 0, -1)


def decode_call(
    data: bytes, session: bytes, after: tuple[int, int, int]
) -> tuple[Header, QueryCall | SumCall]:
    """Decode a call of this session at a place later than `after`.

    Raises RemoteProtocolError for a call of another session, for an earlier place, and for bytes that are no
    call.
    """
    header = peek(data, SERVER)
    if header.session != session:
        raise RemoteProtocolError(
            "Expected a call of the session that was entered, got one of another session.", sender=SERVER
        )
    # Two machines at one place would draw from one secret, so a repeated call is refused.
    if header.place() <= after:
        raise RemoteProtocolError(
            f"Expected a place after {after}, got {header.place()}: places go up.", sender=SERVER
        )
    kinds: dict[type[Any], Limit] = {QueryCall: _MOST, SumCall: _MOST}
    return header, decode(data, header, kinds, SERVER)
