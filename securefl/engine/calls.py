"""Calls: the message with which the server starts an exchange or a hidden sum at each party.

A call carries the sizes, names and keys from which a party makes its machine. It has no authority. A client
takes every parameter from its plan, its order and the pinned keys. If a call disagrees, signatures do not
verify together and no sum opens. Calls belong to the transport, like its packets: a simulated network with
faults loses none of them, and traffic counts do not include them.

A call names clients by one bit for each client of the run, and draws only if some client was drawn twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np

from securefl.algorithm.queries import Sum, ValueSpec
from securefl.algorithm.weighing import Weights
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.messages import Cohort, client_name
from securefl.core.release import SERVER
from securefl.core.wire import Header, Limit, decode, encode, message, peek
from securefl.linear.scheme import PublicQueries
from securefl.sums.scheme import Attempt

T = TypeVar("T")
MOST_CLIENTS: Final = 2**20
"""The most clients of a run, so that the bits of a call cannot take much memory."""


def by_server(reason: str) -> RemoteProtocolError:
    """The error for a message of the server that breaks a rule."""
    return RemoteProtocolError(reason, sender=SERVER)


def bits_of(members: Sequence[int]) -> bytes:
    """Return one bit for each client up to the last of these members, the first in the lowest bit.

    Raises ConfigError for a number below 0, or of `MOST_CLIENTS` and more.
    """
    if members and not 0 <= min(members) <= max(members) < MOST_CLIENTS:
        raise ConfigError(
            f"Expected clients from 0 to {MOST_CLIENTS - 1}, got {min(members)} or {max(members)}."
        )
    there = np.zeros(max(members, default=-1) + 1, np.bool_)
    there[list(members)] = True
    return np.packbits(there, bitorder="little").tobytes()


def members_of(bits: bytes) -> tuple[int, ...]:
    """Return the members, ascending: `bits_of` inverted. Raises RemoteProtocolError for other bytes."""
    if 8 * len(bits) > MOST_CLIENTS or bits[-1:] == b"\0":
        raise by_server(
            f"Expected one bit for each client, at most {MOST_CLIENTS} of them and the last one set, got "
            f"{len(bits)} bytes."
        )
    there = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return tuple(np.flatnonzero(there).tolist())


def _if_many(draws: Sequence[int]) -> tuple[int, ...]:
    """Return the draws, or nothing if each client was drawn once."""
    return tuple(draws) if max(draws, default=1) > 1 else ()


@message("query-call", sender="server", version=2)
@dataclass(frozen=True, kw_only=True)
class QueryCall:
    """Starts an exchange of orders, numbers and sums in the clear.

    Attributes:
        most: the limits of the exchange's orders and broadcasts.
        asked: the public parameters of encrypted numbers. None: no number is encrypted.
        members, draws: of the cohort of hidden sums, which the order names by its digest. Without members,
            no sum is hidden. Without draws, each member was drawn once.
        key: the key holder's reply to its own call, which holds its key. Empty in that call.

    Raises:
        ConfigError: encrypted numbers of fewer than no client.
    """

    most: Limit
    asked: PublicQueries | None = None
    members: bytes = b""
    draws: tuple[int, ...] = ()
    key: bytes = b""

    def __post_init__(self) -> None:
        if self.asked is not None and self.asked.cohort < 0:
            raise ConfigError(f"Expected a number of clients, got {self.asked.cohort}.")

    @classmethod
    def of(
        cls, most: Limit, asked: PublicQueries | None, key: bytes = b"", cohort: Cohort | None = None
    ) -> QueryCall:
        """The call for these encrypted numbers, under this key, and for hidden sums over this cohort."""
        if cohort is None:
            return cls(most=most, asked=asked, key=key)
        members, draws = bits_of(cohort.members), _if_many(cohort.draws)
        return cls(most=most, asked=asked, members=members, draws=draws, key=key)

    def hidden_cohort(self) -> Cohort | None:
        """The cohort of hidden sums, or None if no sum is hidden.

        Raises RemoteProtocolError if it is not valid.
        """
        if not self.members:
            return None
        members = members_of(self.members)
        try:
            return Cohort(members=members, draws=self.draws or (1,) * len(members))
        except ConfigError as error:
            raise by_server(
                f"Expected a call for hidden sums over a cohort, got one over none: {error}"
            ) from None


@message("sum-call", sender="server")
@dataclass(frozen=True, kw_only=True)
class SumCall:
    """Starts an attempt at a hidden sum.

    Attributes:
        members: the bits of the clients that are called.
        ordered: the number of clients of the order's cohort.
        draws: of all of them, in the order of their numbers; empty if each was drawn once. whole, records: as
            in the order. Clients take all four from their order and its cohort, a key holder from here.
        names, lengths: of the vectors.
        initial, number, again: of the query. Clients take them from their orders.
        task: digest of the order and broadcast, as the server states it.
        key: the key holder's key of this attempt, as it sent it. Empty if the attempt has none.
    """

    members: bytes
    ordered: int
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

    @classmethod
    def over(cls, called: Sequence[int], attempt: Attempt) -> SumCall:
        """The call of these clients to an attempt."""
        weights = attempt.weights
        return cls(
            members=bits_of(called),
            ordered=weights.ordered,
            draws=_if_many(weights.draws),
            whole=weights.whole,
            records=weights.records,
            names=tuple(wanted.spec.name for wanted in attempt.sums),
            lengths=tuple(wanted.size for wanted in attempt.sums),
            initial=attempt.initial,
            number=attempt.number,
            again=attempt.again,
            task=attempt.task,
        )

    @cached_property
    def called(self) -> tuple[int, ...]:
        """Numbers of the clients that are called, ascending. Raises RemoteProtocolError for other bits."""
        return members_of(self.members)

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
        counts_fit = counts_fit and len(self.draws) in (0, self.ordered) and not (self.whole and self.records)
        counts_fit = counts_fit and 0 < self.ordered <= MOST_CLIENTS
        if not fits or not known or len(self.task) != 32 or not counts_fit:
            raise by_server(
                f"Expected sums among {sorted(contributions)} with a length each, got {self.names}."
            )
        return tuple(
            Sum(contributions[name], size) for name, size in zip(self.names, self.lengths, strict=True)
        )

    def attempt(self, header: Header, sums: tuple[Sum, ...]) -> Attempt:
        """The attempt that the server states in this call: all that a key holder has of it."""
        return Attempt(
            header=header,
            sums=sums,
            initial=self.initial,
            number=self.number,
            again=self.again,
            cohort=tuple(sorted(map(client_name, self.called))),
            weights=self.weights,
            task=self.task,
        )

    @property
    def weights(self) -> Weights:
        """The weights that the server states in this call; its order stated them before."""
        return Weights(self.draws or (1,) * self.ordered, self.whole, self.records)


_LAST = 2**16
"""Above every stage and attempt, which have two bytes each on the wire."""
_MOST = Limit(2**26, 2**21)
"""The limit of a call, which holds a key and a cohort."""


def encode_call(header: Header, call: QueryCall | SumCall) -> bytes:
    """Encode a call."""
    return encode(header, call)


def last_place(number: int) -> tuple[int, int, int]:
    """The last place of a round. A session's first call comes after that of round 0: rounds count from 1."""
    return number, _LAST, _LAST


def decode_call(
    data: bytes, session: bytes, after: tuple[int, int, int]
) -> tuple[Header, QueryCall | SumCall]:
    """Decode a call of this session at a place later than `after`.

    Raises RemoteProtocolError for a call of another session, for an earlier place, and for bytes that are no
    call.
    """
    header = peek(data, SERVER)
    if header.session != session:
        raise by_server("Expected a call of the session that was entered, got one of another session.")
    # Two machines at one place would draw from one secret, so a repeated call is refused.
    if header.place() <= after:
        raise by_server(f"Expected a place after {after}, got {header.place()}: places go up.")
    kinds: dict[type[Any], Limit] = {QueryCall: _MOST, SumCall: _MOST}
    return header, decode(data, header, kinds, SERVER)
