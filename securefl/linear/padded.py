"""`scores = "pads"`: for clients without a homomorphic library, opened in two turns.

    turn 0   server: signed lists of the clients' fresh keys      key holder: ciphertexts of their pads
    turn 1   server: masked sums, one request a list              key holder: the sums

`pads` has the protocol and what each party sees. This module has the evaluator's part, the server's work
orders (list fresh keys, request sums, subtract the pads), and the sides of the three parties.

If two clients sent the same fresh key, it is listed for neither: one of them copied it, and the server cannot
tell which.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import ceil, sqrt
from typing import ClassVar

import numpy as np

from securefl.core.agreement import Directory, u32
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.hiding import Conceal, Concealed
from securefl.core.keys import Guarded, PublicKey
from securefl.core.linear import Floats, LinearBounds, LinearQuery
from securefl.core.messages import OVERHEAD, REFUSED
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.signing import SIGNATURE_BYTES, AgreementKey, SigningKey
from securefl.core.wire import Header, Limit
from securefl.he import gate
from securefl.he.flooding import wide_gaussian
from securefl.he.keys import EncryptionKey, KeyPair, agreed, checked
from securefl.he.openings import Openings
from securefl.he.parameters import STRONG
from securefl.he.ring import Ring
from securefl.linear.opener import KeyHolder, Score, open_each
from securefl.linear.pad_terms import KEY, PARAMETERS, WORD_BITS, PadTerms
from securefl.linear.pads import Masked, PadKeyHolder, admit, framed, integer_residues, mask, scaled
from securefl.linear.scheme import Asked, Found, Place, Queries, Questions, Report, Scoring, Sent, blaming
from securefl.linear.terms import clear_part
from securefl.storage.own_record import Own

_FLOOD_BITS = 40


@dataclass(frozen=True, eq=False)
class PadOpening(Guarded):
    """One blinded block: `request` goes to the key holder, the rest stays with the evaluator."""

    request: bytes = field(repr=False)
    masks: tuple[int, ...] = field(repr=False)
    clients: tuple[int, ...]


class PadEvaluator:
    """The evaluator's part for one batch of clients: list their keys, request the sums, unmask."""

    def __init__(
        self,
        public: EncryptionKey,
        terms: PadTerms,
        signing: SigningKey,
        query: LinearQuery,
        *,
        rng: random.Random | None = None,
        ring: Ring | None = None,
    ) -> None:
        self._terms, self._signing = terms, signing
        self._rng = rng or random.SystemRandom()
        self._ring = ring or Ring(agreed(public, PARAMETERS).parameters)
        self._encryptor = self._ring.encryptor(public.residues())
        if query.bounds != terms.bounds:
            raise ConfigError("Expected a query with the bounds of its pads, got one with other bounds.")
        self._query = query
        self._weights = np.rint(query.row(encrypted=False) * terms.weight_scale).astype(np.int64)
        # Reversed, so that the sum <r, v> of a client is one coefficient of the product, the last of its row.
        self._plain = self._ring.plain(integer_residues(self._weights[::-1].astype(object)))

    def list(self, masked: Sequence[Masked]) -> bytes:
        """The signed list of fresh keys, in the order in which the key holder encrypts their pads."""
        return self._sign(b"pads", b"".join(one.fresh.raw for one in masked))

    def request(
        self, ciphertext: bytes, first: int, there: Sequence[Masked | None], *, sender: str = "key holder"
    ) -> PadOpening:
        """The request for the sums of one block, which begins with client `first` of the list.

        there: the block's messages. None for a client that dropped out, whose sum is not opened.
        """
        p, degree = PARAMETERS, PARAMETERS.poly_modulus_degree
        residues = gate.unpack(ciphertext, 2, p.primes, degree, sender=sender)
        gate.not_transparent(residues, sender=sender)
        cipher = self._ring.weighted(self._ring.ciphertext(residues, 1.0), self._plain)
        whole = self._ring.coefficients(
            self._ring.total([cipher, self._ring.zero(self._encryptor, cipher.scale)])
        )
        clients = tuple(i for i, one in enumerate(there) if one is not None)
        masks = tuple(self._rng.randrange(2**WORD_BITS) for _ in clients)
        items = []
        for client, blind in zip(clients, masks, strict=True):
            where = (client + 1) * self._terms.row - 1
            found = p.compose(tuple(int(r) for r in whole[0, :, where]))
            opened = (found + scaled(blind) + wide_gaussian(self._flooding, self._rng)) % p.modulus
            # Two bytes hold every place, since a ciphertext has 8,192.
            items.append(where.to_bytes(2, "little") + gate.pack_integer(opened, p.modulus))
        body = gate.pack(whole[1:], p.primes) + b"".join(items)
        return PadOpening(self._sign(b"open", body), masks, tuple(first + client for client in clients))

    @cached_property
    def _flooding(self) -> float:
        """2^40 standard deviations of the largest noise that the terms allow, far below the unit Q / 2^64.

        The key holder sees the width of the flooding, so it depends on the terms only, not on the current
        weights.
        """
        terms = self._terms
        largest = terms.bounds.weight_norm * terms.weight_scale + sqrt(terms.row) / 2
        return 2.0**_FLOOD_BITS * PARAMETERS.fresh_noise * (largest + 1)

    def scores(
        self, opening: PadOpening, reply: bytes, masked: Sequence[Masked], *, sender: str = "key holder"
    ) -> dict[int, Score | RemoteProtocolError]:
        """The score of each client in the opening, or an error in its place."""
        if len(reply) != 8 * len(opening.masks):
            raise RemoteProtocolError(
                f"Expected one sum for each of {len(opening.masks)} places, got {len(reply)} bytes.",
                sender=sender,
                phase="pads",
            )
        sums = np.frombuffer(reply, dtype="<u8")
        found: dict[int, Score | RemoteProtocolError] = {}
        for client, blind, own in zip(opening.clients, opening.masks, sums, strict=True):
            try:
                found[client] = self._score(masked[client], (int(own) - blind) % 2**WORD_BITS)
            except RemoteProtocolError as error:
                found[client] = error
        return found

    def _score(self, masked: Masked, pad: int) -> Score:
        terms, sender = self._terms, masked.sender
        if len(masked.words) != 8 * terms.row or masked.place != terms.place:
            raise RemoteProtocolError(
                "Expected masked words of this round's terms, got others.", sender=sender, phase="pads"
            )
        clear = clear_part(masked.clear, terms.bounds, sender)
        words = np.frombuffer(masked.words, dtype="<u8")
        # Wrapping is intended: words are modulo 2^64, and a negative weight is its residue.
        with np.errstate(over="ignore"):
            product = int((words * self._weights.astype(np.uint64)).sum(dtype=np.uint64))
        whole = (product - pad) % 2**WORD_BITS
        centred = whole - 2**WORD_BITS if whole >= 2 ** (WORD_BITS - 1) else whole
        hidden = centred / (terms.data_scale * terms.weight_scale)
        scale, error = terms.bounds.scale, terms.error_bound
        value = (hidden + self._query.offset + float(clear @ self._query.clear)) / scale
        if abs(hidden) > terms.bounds.product + scale * error or not terms.bounds.allows(value, error):
            raise RemoteProtocolError(
                "Expected a score inside the declared bounds, got one that no honest client gives.",
                sender=sender,
                phase="score",
            )
        return Score(value, terms.error_bound)

    def _sign(self, kind: bytes, body: bytes) -> bytes:
        return body + self._signing.sign(framed(kind, self._terms, body)).raw


def lists_of(asked: Questions, terms: PadTerms) -> int:
    """The largest number of lists of fresh keys, with a block of clients in each."""
    return len(asked.names) * ceil(asked.cohort / terms.block)


@dataclass(frozen=True, kw_only=True, eq=False)
class PadScoring:
    """The server's part of one exchange under pads."""

    public: EncryptionKey
    signing: SigningKey
    ring: Ring
    terms: PadTerms
    queries: Queries
    cohort: int
    report: Report

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.queries)

    @property
    def sealed_bytes(self) -> int:
        return self.terms.message_bytes

    @property
    def replies(self) -> Limit:
        ciphertext = gate.residues_size(2, PARAMETERS.primes, PARAMETERS.poly_modulus_degree)
        lists = lists_of(Questions.of(self.queries, self.cohort), self.terms)
        return Limit((ciphertext + 8) * lists + OVERHEAD, lists)

    def admit(self, sender: str, sealed: bytes) -> None:
        """The gate: raises RemoteProtocolError(sender) for bytes that no client of this exchange makes."""
        admit(sealed, NOTHING_CLEAR, self.terms, sender=sender)

    def score(self, sent: tuple[Sent, ...]) -> ListPads:
        return ListPads(self, sent)


NOTHING_CLEAR: Floats = np.zeros(0)


@dataclass(frozen=True, eq=False)
class Listed:
    """Clients whose pads are in one ciphertext, in this order, and the evaluator that scores them."""

    evaluator: PadEvaluator
    sent: tuple[Sent, ...]
    masked: tuple[Masked, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class ListPads:
    """A work order of the server: list the received fresh keys, in as many lists per query as they need."""

    part: PadScoring
    sent: tuple[Sent, ...]

    def run(self) -> Asked | Found:
        # Before lists are made, since the key holder refuses a whole list that names a key twice.
        masked = {one.place: self._read(one) for one in self.sent}
        uses = Counter(own.fresh.raw for own in masked.values())
        for own in masked.values():
            if uses[own.fresh.raw] > 1:
                self.part.report(
                    own.sender, "Expected a fresh key of its own, got one that another message has too."
                )
        once = [one for one in self.sent if uses[masked[one.place].fresh.raw] == 1]
        lists = [own for name in self.part.queries for own in self.lists_of(name, once, masked)]
        if not lists:
            return Found({})
        items = tuple(own.evaluator.list(own.masked) for own in lists)
        return Asked(items, partial(AskSums, self.part, tuple(lists)))

    def _read(self, one: Sent) -> Masked:
        return admit(one.sealed, one.clear, self.part.terms, sender=one.sender)

    def lists_of(self, name: str, sent: Sequence[Sent], masked: Mapping[Place, Masked]) -> list[Listed]:
        own = [one for one in sent if one.name == name]
        if not own:
            return []
        part, terms = self.part, self.part.terms
        evaluator = PadEvaluator(part.public, terms, part.signing, part.queries[name], ring=part.ring)
        blocks = (tuple(own[i : i + terms.block]) for i in range(0, len(own), terms.block))
        return [Listed(evaluator, some, tuple(masked[one.place] for one in some)) for some in blocks]


@dataclass(frozen=True, eq=False)
class AskSums:
    """A work order of the server: multiply the pads by the weights, and request the masked sums."""

    part: PadScoring
    lists: tuple[Listed, ...]
    replies: tuple[bytes, ...]

    def run(self) -> Asked | Found:
        openings = []
        for listed, reply in zip(self.lists, self.replies, strict=True):
            # A refused list costs only its own clients their scores.
            if reply != REFUSED:
                with blaming(self.part.report):
                    # A list fills at most one ciphertext, so its block begins with its first client.
                    opening = listed.evaluator.request(reply, 0, listed.masked, sender=KEY_HOLDER)
                    openings.append((listed, opening))
        if not openings:
            return Found({})
        items = tuple(opening.request for _, opening in openings)
        return Asked(items, partial(Unpad, self.part, tuple(openings)))


@dataclass(frozen=True, eq=False)
class Unpad:
    """A work order of the server: subtract the pads from the products."""

    part: PadScoring
    openings: tuple[tuple[Listed, PadOpening], ...]
    replies: tuple[bytes, ...]

    def run(self) -> Found:
        found: dict[Place, float] = {}
        for (listed, opening), reply in zip(self.openings, self.replies, strict=True):
            if reply != REFUSED:
                with blaming(self.part.report):
                    own = listed.evaluator.scores(opening, reply, listed.masked, sender=KEY_HOLDER)
                    found |= self._right(listed, own)
        return Found(found)

    def _right(self, listed: Listed, scores: Mapping[int, Score | RemoteProtocolError]) -> dict[Place, float]:
        """The numbers of the clients that have one. For the others the reason goes to `report`."""
        found = {}
        for client, score in scores.items():
            if isinstance(score, RemoteProtocolError):
                self.part.report(score.sender, str(score))
            else:
                found[listed.sent[client].place] = score.value
        return found


class Pads:
    """The scheme with integers masked by pads that the key holder knows. Arguments as for `Ckks`."""

    key_holder_learns: ClassVar[str] = "who takes part, and blinded integers, uniform to it"

    def __init__(self, parameters: str, asks: int, clients: int) -> None:
        if parameters != STRONG.name:
            raise ConfigError(
                f'Expected no `parameters` with scores = "pads", got {parameters!r}: pads have a set of '
                "their own. Leave the line out."
            )
        self._openings = asks * clients

    def clients(self, directory: Directory) -> PadClients:
        return PadClients(self, directory)

    def server(self, own: Own) -> PadServer:
        return PadServer(self, own)

    def key_holder(self, own: Own, report: Report) -> PadKeyHolderSide:
        return PadKeyHolderSide(self, own, report)

    def terms(self, bounds: LinearBounds, header: Header) -> PadTerms:
        """The terms of one exchange. Every party computes them for itself."""
        return terms_of(bounds, header, self._openings)


@dataclass(frozen=True)
class PadClients:
    """The clients' side: they agree on pads with the key that the key holder signed."""

    scheme: Pads
    directory: Directory

    def conceal(self, asked: Questions, header: Header, key: bytes) -> Mapping[str, Conceal]:
        terms = self.scheme.terms(asked.bounds, header)
        agreement, _ = _public(self.directory, key)
        return dict.fromkeys(asked.names, partial(_masked, terms, agreement))


class PadServer:
    """The server's side: it lists fresh keys and has masked sums opened."""

    def __init__(self, scheme: Pads, own: Own) -> None:
        self._scheme = scheme
        self._own = own
        self._ring = Ring(PARAMETERS)
        self._terms: dict[LinearBounds, PadTerms] = {}

    def begin(self, queries: Queries, cohort: int, header: Header, key: bytes, report: Report) -> Scoring:
        bounds = Questions.of(queries, cohort).bounds
        self._terms[bounds] = terms = self._scheme.terms(bounds, header)
        return PadScoring(
            public=_public(self._own.directory, key)[1],
            signing=self._own.identity.signing,
            ring=self._ring,
            terms=terms,
            queries=dict(queries),
            cohort=cohort,
            report=report,
        )

    def sealed_bytes(self, bounds: LinearBounds) -> int | None:
        terms = self._terms.get(bounds)
        return None if terms is None else terms.message_bytes

    def error_bound(self) -> float | None:
        return max((terms.error_bound for terms in self._terms.values()), default=None)


class PadKeyHolderSide:
    """The key holder's side. Its keys and its count of openings live as long as the process."""

    def __init__(self, scheme: Pads, own: Own, report: Report) -> None:
        self._scheme = scheme
        self._own = own
        self._report = report
        # A key for pads only: sums under pads are opened exactly, so a malicious server gets this key in a
        # few requests.
        self._pair = KeyPair.generate(PARAMETERS)
        self._agreement = AgreementKey.generate()
        self._openings = Openings()
        self._ring = Ring(PARAMETERS)
        # Both keys under one signature, so that neither can be replaced by one of another session.
        keys = self._agreement.public.raw + self._pair.public.key.raw
        self._key = own.identity.vouch(_PURPOSE, own.directory.session, keys)

    def machine(self, asked: Questions, header: Header) -> tuple[KeyHolder, bytes]:
        p, terms = PARAMETERS, self._scheme.terms(asked.bounds, header)
        lists = lists_of(asked, terms)
        sums = gate.residues_size(1, p.primes, p.poly_modulus_degree)
        sums += terms.block * (2 + gate.integer_size(p.modulus)) + SIGNATURE_BYTES + 8
        holder = PadKeyHolder(
            self._pair,
            self._agreement,
            terms,
            self._own.directory.server.identity,
            openings=self._openings,
            ring=self._ring,
        )
        # Sized for turn 1, whose requests are longer than turn 0's lists of keys.
        most = Limit(sums * lists + OVERHEAD, lists)
        return KeyHolder(header=header, most=most, turns=2, part=OpensPads(holder, self._report)), self._key


_PURPOSE = b"pads"


def _public(directory: Directory, key: bytes) -> tuple[PublicKey, EncryptionKey]:
    """The key holder's keys: the one for agreeing on pads, and the one of its ciphertexts.

    Raises CryptoError for keys that are not the key holder's, or that are weak.
    """
    raw = directory.vouched(_PURPOSE, key)
    agreement = PublicKey(raw[:KEY])
    AgreementKey.generate().agree(agreement, b"securefl/pad/1|pinned")  # refuses a weak one
    return agreement, checked(PARAMETERS, raw[KEY:])


def terms_of(bounds: LinearBounds, header: Header, openings: int) -> PadTerms:
    """The terms of one exchange. Another session, round, stage or attempt has other pads."""
    return PadTerms(
        bounds=bounds,
        context=header.session + u32(*header.place()),
        openings=openings,
    )


def _masked(terms: PadTerms, key_holder: PublicKey, hidden: Floats) -> Concealed:
    return Concealed("encrypted", sealed=mask(hidden, NOTHING_CLEAR, terms, key_holder).packed)


@dataclass(frozen=True, eq=False)
class OpensPads:
    """The key holder's use of its keys: encrypt each list's pads in turn 0, open masked sums in turn 1."""

    holder: PadKeyHolder
    report: Report

    def open(self, turn: int, items: tuple[bytes, ...]) -> tuple[bytes, ...]:
        own = self._pads if turn == 0 else self._sums
        return open_each(own, items, self.report)

    def _pads(self, listed: bytes) -> bytes:
        # A reply, and the server's limit on replies, have room for one ciphertext per list.
        ciphertexts = self.holder.encrypt(listed, sender=SERVER)
        if len(ciphertexts) != 1:
            raise RemoteProtocolError(
                "Expected a list whose keys fill at most one ciphertext, got another number of keys.",
                sender=SERVER,
                phase="pads",
            )
        return ciphertexts[0]

    def _sums(self, request: bytes) -> bytes:
        return self.holder.open(request, sender=SERVER)
