"""The key holder's part of linear queries: exact integers in numpy, without a homomorphic library.

Its machine accepts one request and gives one reply. The server can lie: it can request openings of values
that it made up. `evaluator` says what these reveal and what limits them. The same request again gets the same
reply. The machine refuses another one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

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
from securefl.he.integers import coefficient_rows, products
from securefl.he.keys import KeyPair, agreed
from securefl.he.openings import Openings
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
            kind: gate.tag(kind, public.session, terms.digest()) for kind in ("request", "addressed", "reply")
        }

    @property
    def opened(self) -> int:
        """The number of integers opened so far, of this key and these terms."""
        return self._openings.opened

    def open(self, request: bytes, *, sender: str = "evaluator") -> bytes:
        """Open a blinded request: one flooded integer mod Q.

        Args:
            request: the evaluator's signed bytes.
            sender: the name for refusals.

        Returns:
            The reply's bytes.

        Raises:
            RemoteProtocolError: the request does not pass the gate, has no valid signature, or is beyond tau.
        """
        return self._tags["reply"] + self._opened(request, "request", sender)

    def read(self, request: bytes, *, together: int = 1, sender: str = "evaluator") -> Score:
        """The score of a request that is addressed to the key holder.

        Args:
            request: the evaluator's signed bytes.
            together: the number of scores for which the error bound holds at once.
            sender: the name for refusals.

        Raises:
            RemoteProtocolError: another request, or a score outside the declared bounds.
        """
        opened = int.from_bytes(self._opened(request, "addressed", sender), "little")
        return addressed_score(opened, self._terms, together, sender=sender)

    def _opened(self, request: bytes, kind: str, sender: str) -> bytes:
        """The flooded integer of a request that passes the gate."""
        p = self._terms.parameters
        size = gate.integer_size(p.modulus)
        degree, rest = p.poly_modulus_degree, p.polynomials - 1
        whole = size + gate.residues_size(rest, p.primes, degree) + SIGNATURE_BYTES
        raw = gate.body(request, self._tags[kind], whole, sender=sender)
        try:
            verify(self._evaluator, Signature(request[-SIGNATURE_BYTES:]), request[:-SIGNATURE_BYTES])
        except CryptoError as error:
            raise RemoteProtocolError(str(error), sender=sender, phase="gate") from None
        masked = gate.unpack_integer(raw[:size], p.modulus, sender=sender)
        polynomials = gate.unpack(raw[size:-SIGNATURE_BYTES], rest, p.primes, degree, sender=sender)
        # The digest leaves the signature out, which may differ between two requests for one opening.
        digest = hashlib.sha256(request[:-SIGNATURE_BYTES]).digest()
        reply = partial(self._flooded, masked, polynomials)
        return self._openings.once(digest, 1, self._terms.scores, reply, sender=sender)

    def _flooded(self, masked: int, polynomials: gate.Residues) -> bytes:
        """masked + c1 s (+ c2 s^2) + noise, on the grid."""
        p = self._terms.parameters
        parts = (products(row, own, p)[0] for row, own in zip(self._powers, polynomials, strict=True))
        return gate.pack_integer(flooded(masked + sum(parts), self._terms, self._rng), p.modulus)


def flooded(value: int, terms: LinearTerms, rng: random.Random) -> int:
    """An integer mod Q with the key holder's noise, on the grid."""
    # In whole steps of the grid, since the noise's float has no random bits below it.
    grid = terms.grid
    noise = grid * round(terms.sigma / grid * rng.gauss(0.0, 1.0))
    return (value + noise + grid // 2) // grid * grid % terms.parameters.modulus


def _powers(secret: NDArray[np.int64], terms: LinearTerms) -> list[NDArray[np.int64]]:
    """For s, and s^2 in mode E: the row that gives the first coefficient of a product with it."""
    powers = [secret]
    if terms.parameters.encrypted_baseline:
        # The square modulo X^N + 1: coefficients that wrap around change their sign.
        whole = np.convolve(secret, secret)
        square = whole[: len(secret)].copy()
        square[: len(secret) - 1] -= whole[len(secret) :]
        powers.append(square)
    return [coefficient_rows(power, [0]) for power in powers]


# The machine of every scheme ----------------------------------------------------------------------


@dataclass(frozen=True)
class OpenItems:
    """A work order of the key holder: open the items of a request."""

    open_: Callable[[bytes], bytes]
    items: tuple[bytes, ...]
    report: Callable[[str, str], None]

    def run(self) -> tuple[bytes, ...]:
        """The opening of each item, or `REFUSED`. Reasons go to `report`."""
        replies = [REFUSED] * len(self.items)
        for i, item in enumerate(self.items):
            try:
                replies[i] = self.open_(item)
            except RemoteProtocolError as error:
                self.report(error.sender, str(error))
        return tuple(replies)


@dataclass(frozen=True)
class Ready:
    """The request, if it came, and its reply, if it is made."""

    request: OpenRequest | None = None
    reply: OpenReply | None = None


@dataclass(frozen=True, kw_only=True)
class KeyHolder:
    """The key holder's machine of one exchange.

    Attributes:
        header: the place of the exchange.
        most: the largest request.
        open_: opens an item, or raises RemoteProtocolError.
        report: is told why an item was refused.
    """

    header: Header
    most: Limit
    open_: Callable[[bytes], bytes]
    report: Callable[[str, str], None]

    def begin(self) -> Step[Ready]:
        return Step(Ready())

    def expects(self, state: Ready) -> Expects:
        return Expects(self.header, {OpenRequest: self.most})

    def receive(self, state: Ready, sender: str, message: OpenRequest) -> Step[Ready]:
        if sender != SERVER:
            raise RemoteProtocolError(
                f"Expected a request from the server, got one from {sender}.", sender=sender, phase="opening"
            )
        # Repeating a request spends nothing: one is opened, and its reply is kept.
        if state.request not in (None, message):
            raise RemoteProtocolError(
                "Expected one request, got another: one is opened.", sender=sender, phase="opening"
            )
        if state.request is None:
            return Step(Ready(message), need=Need(OpenItems(self.open_, message.items, self.report)))
        return Step(state, out=() if state.reply is None else (Outgoing((SERVER,), state.reply),))

    def provide(self, state: Ready, answer: tuple[bytes, ...]) -> Step[Ready]:
        reply = OpenReply(items=tuple(answer))
        return Step(replace(state, reply=reply), out=(Outgoing((SERVER,), reply),), result="opened")

    def deadline(self, state: Ready) -> Step[Ready]:
        return Step(state, result="unused")
