"""`scores = "pads"`: clients without a homomorphic library, opened in two turns.

    turn 0   server: signed lists of the fresh keys that came     key holder: ciphertexts of their pads
    turn 1   server: masked sums, one request a list              key holder: the sums

The parts, and what each party sees, stand in `pads`, and the server's slow work in `pad_work`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from securefl.core.agreement import Directory, u32
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.hiding import Conceal, Concealed
from securefl.core.keys import PublicKey
from securefl.core.linear import Floats, LinearBounds
from securefl.core.messages import OVERHEAD
from securefl.core.release import SERVER
from securefl.core.signing import SIGNATURE_BYTES, AgreementKey
from securefl.core.wire import Header, Limit
from securefl.he import gate
from securefl.he.keys import EncryptionKey, KeyPair, checked
from securefl.he.openings import Openings
from securefl.he.parameters import STRONG
from securefl.he.ring import Ring
from securefl.linear.opener import KeyHolder, opened_by
from securefl.linear.pad_terms import KEY, PARAMETERS, PadTerms
from securefl.linear.pad_work import NOTHING_CLEAR, PadScoring, lists_of
from securefl.linear.pads import PadKeyHolder, mask
from securefl.linear.way import Queries, Questions, Scoring, Tell
from securefl.storage.own_record import Own


class Pads:
    """Scores of masked integers, under pads that the key holder knows. The arguments are those of `Ckks`."""

    key_holder_learns: ClassVar[str] = "who takes part, and blinded integers, uniform to it"

    def __init__(self, parameters: str, asks: int, clients: int) -> None:
        if parameters != STRONG.name:
            raise ConfigError(
                f'Expected no `parameters` beside scores = "pads", got {parameters!r}: pads have a set of '
                "their own. Leave the line out."
            )
        self._openings = asks * clients

    def clients(self, directory: Directory) -> PadClients:
        return PadClients(self, directory)

    def server(self, own: Own) -> PadServer:
        return PadServer(self, own)

    def key_holder(self, own: Own, tell: Tell) -> PadKeyHolderSide:
        return PadKeyHolderSide(self, own, tell)

    def terms(self, bounds: LinearBounds, header: Header) -> PadTerms:
        """Of one exchange: every party works them out for itself."""
        return terms_of(bounds, header, self._openings)


@dataclass(frozen=True)
class PadClients:
    """The clients' side: they agree on pads with the key that the key holder signed."""

    way: Pads
    directory: Directory

    def conceal(self, asked: Questions, header: Header, key: bytes) -> Mapping[str, Conceal]:
        terms = self.way.terms(asked.bounds, header)
        agreement, _ = _public(self.directory, key)
        return dict.fromkeys(asked.names, partial(_masked, terms, agreement))


class PadServer:
    """The server's side: it lists fresh keys, and has masked sums opened."""

    def __init__(self, way: Pads, own: Own) -> None:
        self._way = way
        self._own = own
        self._ring = Ring(PARAMETERS)
        self._terms: dict[LinearBounds, PadTerms] = {}

    def begin(self, queries: Queries, cohort: int, header: Header, key: bytes, tell: Tell) -> Scoring:
        bounds = Questions.of(queries, cohort).bounds
        self._terms[bounds] = terms = self._way.terms(bounds, header)
        return PadScoring(
            public=_public(self._own.directory, key)[1],
            signing=self._own.identity.signing,
            ring=self._ring,
            terms=terms,
            queries=dict(queries),
            cohort=cohort,
            tell=tell,
        )

    def sealed_bytes(self, bounds: LinearBounds) -> int | None:
        terms = self._terms.get(bounds)
        return None if terms is None else terms.message_bytes

    def error_bound(self) -> float | None:
        return max((terms.error_bound for terms in self._terms.values()), default=None)


class PadKeyHolderSide:
    """The key holder's side. Its keys live as long as the process, and so does its count of openings."""

    def __init__(self, way: Pads, own: Own, tell: Tell) -> None:
        self._way = way
        self._own = own
        self._tell = tell
        # For pads alone: sums under pads are opened exactly, so a malicious server reads this key in a few
        # requests.
        self._pair = KeyPair.generate(PARAMETERS)
        self._agreement = AgreementKey.generate()
        self._openings = Openings()
        self._ring = Ring(PARAMETERS)
        # Both keys under one signature: neither can be replaced by one of another session.
        keys = self._agreement.public.raw + self._pair.public.key.raw
        self._key = own.identity.vouch(_PURPOSE, own.directory.session, keys)

    def machine(self, asked: Questions, header: Header) -> tuple[KeyHolder, bytes]:
        p, terms = PARAMETERS, self._way.terms(asked.bounds, header)
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
        # Sized for turn 1: its requests are longer than the lists of keys of turn 0.
        most = Limit(sums * lists + OVERHEAD, lists)
        return KeyHolder(header=header, most=most, turns=2, part=OpensPads(holder, self._tell)), self._key


_PURPOSE = b"pads"


def _public(directory: Directory, key: bytes) -> tuple[PublicKey, EncryptionKey]:
    """The key holder's keys: that which clients agree on pads with, and that of its ciphertexts.

    CryptoError for keys that are not the key holder's, or that nobody can use.
    """
    raw = directory.vouched(_PURPOSE, key)
    agreement = PublicKey(raw[:KEY])
    AgreementKey.generate().agree(agreement, b"securefl/pad/1|pinned")  # refuses a weak one
    return agreement, checked(PARAMETERS, raw[KEY:])


def terms_of(bounds: LinearBounds, header: Header, openings: int) -> PadTerms:
    """The terms of one exchange: pads of another session, round, stage or attempt are others."""
    return PadTerms(
        bounds=bounds,
        context=header.session + u32(*header.place()),
        openings=openings,
    )


def _masked(terms: PadTerms, key_holder: PublicKey, hidden: Floats) -> Concealed:
    return Concealed("encrypted", sealed=mask(hidden, NOTHING_CLEAR, terms, key_holder).packed)


@dataclass(frozen=True, eq=False)
class OpensPads:
    """What the key holder does: encrypt the pads of each list at turn 0, open masked sums at turn 1."""

    holder: PadKeyHolder
    tell: Tell

    def open(self, turn: int, items: tuple[bytes, ...]) -> tuple[bytes, ...]:
        own = self._pads if turn == 0 else self._sums
        return opened_by(own, items, self.tell)

    def _pads(self, listed: bytes) -> bytes:
        # A reply has room for one ciphertext a list, as has the limit on replies at the server.
        ciphertexts = self.holder.encrypt(listed, sender=SERVER)
        if len(ciphertexts) != 1:
            raise RemoteProtocolError(
                "Expected as many keys in a list as one ciphertext holds, got another number.",
                sender=SERVER,
                phase="pads",
            )
        return ciphertexts[0]

    def _sums(self, request: bytes) -> bytes:
        return self.holder.open(request, sender=SERVER)
