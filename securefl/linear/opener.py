"""The key holder's part of linear queries: exact integers in numpy, without a homomorphic library.

Its machine accepts one request per turn and gives one reply. The server can lie: it can request openings of
values that it made up. `evaluator` says what these reveal and what limits them. The same request again gets
the same reply. The machine refuses another request for a turn, and a turn before the last one was answered.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import Guarded, PublicKey, Signature
from securefl.core.machine import Expects, Need, Outgoing, Step
from securefl.core.messages import REFUSED, OpenReply, OpenRequest
from securefl.core.release import SERVER
from securefl.core.signing import SIGNATURE_BYTES, verify
from securefl.core.wire import Header, Limit
from securefl.he import gate
from securefl.he.integers import products
from securefl.he.keys import KeyPair, agreed
from securefl.he.openings import Openings, Reply
from securefl.linear.batches import rows
from securefl.linear.terms import LinearTerms


@dataclass(frozen=True)
class Score:
    """A released number. |value - exact| <= error_bound, except with probability 1e-6."""

    value: float
    error_bound: float


def score_of(hidden: float, offset: float, terms: LinearTerms, bound: float, *, sender: str) -> Score:
    """The score of an opened product. Raises RemoteProtocolError(sender) if no honest client has it.

    hidden: <hidden, w>, of an error up to scale * bound. offset: what is added to it in plaintext.
    """
    scale = terms.bounds.scale
    value = (hidden + offset) / scale
    if abs(hidden) > terms.largest + scale * bound or not terms.bounds.allows(value, bound):
        raise RemoteProtocolError(
            "Expected a score inside the declared bounds, got one that no honest client gives.",
            sender=sender,
            phase="score",
        )
    return Score(value, bound)


def addressed_score(opened: int, terms: LinearTerms, together: int, *, sender: str) -> Score:
    """The score in an opened integer that has its offset and the noise of both. Errors as for `score_of`.

    together: the number of scores for which the error bound holds at once.
    """
    value = terms.parameters.centre(opened) * terms.unit / terms.bounds.scale
    bound = terms.error_bound(together, floods=2)
    if not terms.bounds.allows(value, bound) or abs(value) * terms.bounds.scale > terms.capacity:
        raise RemoteProtocolError(
            "Expected a score inside the declared bounds, got one that no honest client gives.",
            sender=sender,
            phase="score",
        )
    return Score(value, bound)


class Opener(Guarded):
    """Opens requests that the evaluator signed, at most tau integers.

        >>> from securefl.core.signing import SigningKey
        >>> from securefl.he.keys import KeyPair
        >>> from securefl.he.parameters import COMPACT
        >>> from securefl.linear import LinearBounds, Opener, LinearTerms  # `LinearEvaluator` has an exchange
        >>> bounds = LinearBounds(hidden_length=2, norm=2.0, weight_norm=2.0, row_norm=2.0, product=4.0)
        >>> terms = LinearTerms(parameters=COMPACT, bounds=bounds, scores=10)
        >>> Opener(KeyPair.generate(COMPACT), terms, SigningKey.generate().public).opened
        0

    The same request again gets the stored reply, since fresh noise on the same value would average out. The
    evaluator must be semi-honest: requests that it makes up reveal the whole key within a few hundred
    openings. If `openings` is a file, count and replies outlive the process. If it is not, a key holder that
    restarts must take a new key.

    Raises:
        ConfigError: the key is of other parameters than the terms.
    """

    def __init__(
        self,
        keys: KeyPair,
        terms: LinearTerms,
        evaluator: PublicKey,
        *,
        openings: Openings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        public = agreed(keys.public, terms.parameters)
        self._terms, self._evaluator = terms, evaluator
        self._rng = rng or random.SystemRandom()
        self._openings = openings or Openings()
        self._powers = _powers(keys.coefficients(), terms)
        self._tags = {
            kind: gate.tag(kind, public.session, terms.digest())
            for kind in ("request", "batch", "addressed", "reply", "batch-reply")
        }

    @property
    def opened(self) -> int:
        """The number of integers opened so far, of this key and these terms."""
        return self._openings.opened

    def open(self, request: bytes, *, sender: str = "evaluator") -> bytes:
        """Open a blinded request: one flooded integer mod Q per class.

        Args:
            request: the evaluator's signed bytes.
            sender: the name for refusals.

        Returns:
            The reply's bytes.

        Raises:
            RemoteProtocolError: the request does not pass the gate, has no valid signature, or is beyond tau.
        """
        # Terms with classes accept both kinds. The gate refuses any other tag.
        kind = (
            "batch" if self._terms.classes > 1 and request[: gate.TAG] == self._tags["batch"] else "request"
        )
        integers = self._terms.classes if kind == "batch" else 1
        masked, polynomials = self._read(request, kind, integers, sender)

        def reply() -> bytes:
            opened = self._flooded(masked, polynomials)
            modulus = self._terms.parameters.modulus
            tag = self._tags["reply" if kind == "request" else "batch-reply"]
            return tag + b"".join(gate.pack_integer(value, modulus) for value in opened)

        return self._once(request, integers, reply, sender)

    def read(self, request: bytes, *, together: int = 1, sender: str = "evaluator") -> Score:
        """The score of a request that is addressed to the key holder.

        Args:
            request: the evaluator's signed bytes.
            together: the number of scores for which the error bound holds at once.
            sender: the name for refusals.

        Raises:
            RemoteProtocolError: another request, or a score outside the declared bounds.
        """
        p = self._terms.parameters
        masked, polynomials = self._read(request, "addressed", 1, sender)

        def reply() -> bytes:
            return gate.pack_integer(self._flooded(masked, polynomials)[0], p.modulus)

        opened = int.from_bytes(self._once(request, 1, reply, sender), "little")
        return addressed_score(opened, self._terms, together, sender=sender)

    def _read(self, request: bytes, kind: str, integers: int, sender: str) -> tuple[list[int], gate.Residues]:
        """The masked integers, and the polynomials from the second on, of a request that passes the gate."""
        p = self._terms.parameters
        size = gate.integer_size(p.modulus)
        degree, rest = p.poly_modulus_degree, p.polynomials - 1
        whole = integers * size + gate.residues_size(rest, p.primes, degree) + SIGNATURE_BYTES
        raw = gate.body(request, self._tags[kind], whole, sender=sender)
        try:
            verify(self._evaluator, Signature(request[-SIGNATURE_BYTES:]), request[:-SIGNATURE_BYTES])
        except CryptoError as error:
            raise RemoteProtocolError(str(error), sender=sender, phase="gate") from None
        numbers = [raw[i * size : (i + 1) * size] for i in range(integers)]
        masked = [gate.unpack_integer(number, p.modulus, sender=sender) for number in numbers]
        polynomials = raw[integers * size : -SIGNATURE_BYTES]
        return masked, gate.unpack(polynomials, rest, p.primes, degree, sender=sender)

    def _once(self, request: bytes, integers: int, reply: Reply, sender: str) -> bytes:
        # The digest leaves the signature out, which may differ between two requests for one opening.
        digest = hashlib.sha256(request[:-SIGNATURE_BYTES]).digest()
        return self._openings.once(digest, integers, self._terms.scores, reply, sender=sender)

    def _flooded(self, masked: list[int], polynomials: gate.Residues) -> list[int]:
        """masked + c1 s (+ c2 s^2) + noise, on the grid."""
        totals = list(masked)
        for polynomial, matrices in zip(polynomials, self._powers, strict=True):
            sums = products(matrices[len(masked)], polynomial, self._terms.parameters)
            totals = [total + own for total, own in zip(totals, sums, strict=True)]
        return [flooded(total, self._terms, self._rng) for total in totals]


def flooded(value: int, terms: LinearTerms, rng: random.Random) -> int:
    """An integer mod Q with the key holder's noise, on the grid."""
    # In whole steps of the grid, since the noise's float has no random bits below it.
    grid = terms.grid
    noise = grid * round(terms.sigma / grid * rng.gauss(0.0, 1.0))
    return (value + noise + grid // 2) // grid * grid % terms.parameters.modulus


def _powers(secret: NDArray[np.int64], terms: LinearTerms) -> list[dict[int, NDArray[np.int64]]]:
    """For s, and s^2 in mode E: the rows that give one integer, and the rows that give one per class."""
    powers = [secret]
    if terms.parameters.encrypted_baseline:
        # The square modulo X^N + 1: coefficients that wrap around change their sign.
        whole = np.convolve(secret, secret)
        square = whole[: len(secret)].copy()
        square[: len(secret) - 1] -= whole[len(secret) :]
        powers.append(square)
    return [{count: rows(power, count) for count in {1, terms.classes}} for power in powers]


# The machine of every scheme ----------------------------------------------------------------------


class Opens(Protocol):
    """The key holder's use of its key."""

    def open(self, turn: int, items: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """One reply per item. The reply to an item that it refuses is `core.messages.REFUSED`."""
        ...


def open_each(
    open_: Callable[[bytes], bytes], items: tuple[bytes, ...], report: Callable[[str, str], None]
) -> tuple[bytes, ...]:
    """The opening of each item, or `REFUSED`. Reasons go to `report`."""
    replies = [REFUSED] * len(items)
    for i, item in enumerate(items):
        try:
            replies[i] = open_(item)
        except RemoteProtocolError as error:
            report(error.sender, str(error))
    return tuple(replies)


@dataclass(frozen=True)
class OpenItems:
    """A work order of the key holder: open the items of one turn."""

    part: Opens
    turn: int
    items: tuple[bytes, ...]

    def run(self) -> tuple[bytes, ...]:
        return self.part.open(self.turn, self.items)


@dataclass(frozen=True)
class Ready:
    """The requests received, one per turn, and their replies. The last request may still be in work."""

    requests: tuple[OpenRequest, ...] = ()
    replies: tuple[OpenReply, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeyHolder:
    """The key holder's machine of one exchange. turns: their number. most: the largest request."""

    header: Header
    most: Limit
    turns: int
    part: Opens

    def begin(self) -> Step[Ready]:
        return Step(Ready())

    def expects(self, state: Ready) -> Expects:
        return Expects(self.header, {OpenRequest: self.most})

    def receive(self, state: Ready, sender: str, message: OpenRequest) -> Step[Ready]:
        if sender != SERVER:
            raise RemoteProtocolError(
                f"Expected a request from the server, got one from {sender}.", sender=sender, phase="opening"
            )
        turn, next_turn = message.turn, len(state.requests)
        if 0 <= turn < next_turn:
            return self._again(state, message)
        # Replies are numbered in order, so a turn waits until the one before has its reply.
        if turn != next_turn or turn >= self.turns or len(state.replies) < next_turn:
            due = f"turn {len(state.replies)}" if len(state.replies) < self.turns else "no further turn"
            raise RemoteProtocolError(
                f"Expected {due}, got turn {turn}; there are {self.turns}, from 0.",
                sender=sender,
                phase="opening",
            )
        order = OpenItems(self.part, turn, message.items)
        return Step(replace(state, requests=(*state.requests, message)), need=Need(order))

    @staticmethod
    def _again(state: Ready, message: OpenRequest) -> Step[Ready]:
        if message != state.requests[message.turn]:
            raise RemoteProtocolError(
                f"Expected the same request as before at turn {message.turn}, got another: one is opened.",
                sender=SERVER,
                phase="opening",
            )
        if message.turn == len(state.replies):  # still in work
            return Step(state)
        return Step(state, out=(Outgoing((SERVER,), state.replies[message.turn]),))

    def provide(self, state: Ready, answer: tuple[bytes, ...]) -> Step[Ready]:
        reply = OpenReply(turn=len(state.replies), items=tuple(answer))
        done = replace(state, replies=(*state.replies, reply))
        return Step(done, out=(Outgoing((SERVER,), reply),), result="opened")

    def deadline(self, state: Ready) -> Step[Ready]:
        return Step(state, result="unused")
