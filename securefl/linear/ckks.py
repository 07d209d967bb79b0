"""`scores = "ckks"` with an encrypted baseline: one ciphertext per client, opened alone, without checks.

A malicious server reads the key within a few hundred openings (`evaluator`). `checked_ckks` is the scheme for
plaintext weights.

A score is the number that a linear query gives for one client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Final

from securefl.core.agreement import Directory
from securefl.core.errors import ConfigError
from securefl.core.hiding import Concealed, ConcealVector
from securefl.core.linear import Floats, LinearBounds
from securefl.core.machine import Work
from securefl.core.messages import OVERHEAD, REFUSED
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header, Limit
from securefl.he.keys import EncryptionKey, KeyPair, checked
from securefl.he.parameters import by_name
from securefl.linear.encryptor import Encryptor
from securefl.linear.evaluator import Baseline, Blinded, LinearEvaluator
from securefl.linear.opener import KeyHolder, Opener
from securefl.linear.scheme import (
    Asked,
    Found,
    Identities,
    Place,
    Queries,
    Questions,
    Report,
    Scoring,
    Sent,
    blaming,
)
from securefl.linear.terms import LinearTerms
from securefl.storage.own_record import Own

MOST_KINDS: Final = 16
"""The most sets of bounds in a session.

Each set takes a key of its own. The server chooses the bounds, so without a limit it could have the key
holder make keys without end.
"""


class Ckks:
    """The scheme with one ciphertext per client: the server learns each number and nothing else.

    Args:
        parameters: the name of the key's parameters.
        asks: the most queries of the session.
        clients: the most clients of one query.
    """

    key_holder_learns: ClassVar[str] = "blinded integers, uniform to it"
    limit: ClassVar[str] = (
        "openings are not checked: a server that breaks the protocol reads the key holder's key, and so all "
        "of it"
    )

    def __init__(self, parameters: str, asks: int, clients: int) -> None:
        self._parameters, self._asks, self._clients = by_name(parameters), asks, clients

    def clients(self, directory: Directory, identities: Identities) -> CkksClients:
        return CkksClients(self, directory)

    def server(self, own: Own) -> CkksServer:
        return CkksServer(self, own)

    def key_holder(self, own: Own, report: Report) -> CkksKeyHolder:
        return CkksKeyHolder(self, own, report)

    def terms(self, bounds: LinearBounds) -> LinearTerms:
        """The terms of a key for vectors within these bounds. Every party computes them for itself."""
        return LinearTerms(parameters=self._parameters, bounds=bounds, scores=self._asks * self._clients)


class CkksClients:
    """The clients' side: they encrypt under the key that the key holder signed for these bounds."""

    def __init__(self, scheme: Ckks, directory: Directory) -> None:
        self._scheme = scheme
        self._directory = directory
        self._known: dict[LinearBounds, tuple[bytes, Encryptor]] = {}
        self._latest: Encryptor | None = None

    def conceal(
        self, asked: Questions, header: Header, key: bytes, clients: Sequence[str]
    ) -> Mapping[str, Mapping[str, ConcealVector]]:
        # A key holder that restarted has another key: clients must not encrypt under the old one.
        known = self._known.get(asked.bounds)
        if known is None or known[0] != key:
            terms = self._scheme.terms(asked.bounds)
            known = key, Encryptor(public_of(self._directory, terms, key), terms)
            self._known[asked.bounds] = known
        self._latest = known[1]
        own = dict.fromkeys(asked.names, ConcealVector(asked.bounds, partial(_encrypted, known[1])))
        return dict.fromkeys(clients, own)

    def prepare(self) -> bool:
        return self._latest is not None and self._latest.prepare()


class CkksServer:
    """The server's side: it multiplies ciphertexts by its baselines and signs its requests."""

    def __init__(self, scheme: Ckks, own: Own) -> None:
        self._scheme = scheme
        self._own = own
        self._known: dict[LinearBounds, tuple[bytes, LinearTerms, EncryptionKey, LinearEvaluator]] = {}

    def questions(self, queries: Queries, cohort: int, header: Header) -> Questions:
        return Questions.of(queries, cohort)

    def begin(self, queries: Queries, cohort: int, header: Header, key: bytes, report: Report) -> Scoring:
        bounds = Questions.of(queries, cohort).bounds
        known = self._known.get(bounds)
        if known is None or known[0] != key:
            terms = self._scheme.terms(bounds)
            public = public_of(self._own.directory, terms, key)
            evaluator = LinearEvaluator(public, terms, self._own.identity.signing)
            known = self._known[bounds] = key, terms, public, evaluator
        _, terms, public, evaluator = known
        return CiphertextScoring(
            terms=terms,
            public=public,
            evaluator=evaluator,
            queries=dict(queries),
            cohort=cohort,
            report=report,
        )

    def sealed_bytes(self, bounds: LinearBounds) -> int | None:
        known = self._known.get(bounds)
        return None if known is None else known[1].ciphertext_bytes

    def error_bound(self) -> float | None:
        return max((terms.error_bound() for _, terms, _, _ in self._known.values()), default=None)


class CkksKeyHolder:
    """The key holder's side: a key for each set of bounds, and the count of its openings.

    Keys live as long as the process. After a restart, the key holder makes new ones and counts openings from
    0.
    """

    def __init__(self, scheme: Ckks, own: Own, report: Report) -> None:
        self._scheme = scheme
        self._own = own
        self._report = report
        self._known: dict[LinearBounds, tuple[bytes, Opener]] = {}

    def machine(self, asked: Questions, header: Header) -> tuple[KeyHolder, bytes]:
        terms = self._scheme.terms(asked.bounds)
        if asked.bounds not in self._known:
            pair, key = made_key(self._own, terms, len(self._known))
            self._known[asked.bounds] = key, Opener(pair, terms, self._own.directory.server.identity)
        key, opener = self._known[asked.bounds]
        most = Limit((terms.request_bytes + 8) * asked.most + OVERHEAD, asked.most)
        open_ = partial(opener.open, sender=SERVER)
        return KeyHolder(header=header, most=most, open_=open_, report=self._report), key


def made_key(own: Own, terms: LinearTerms, before: int) -> tuple[KeyPair, bytes]:
    """A new key pair for these terms, and the public key as the key holder signs it.

    One key per set of bounds: a key's flooding is sized for one set of bounds and one count. `before` is the
    number of keys that the session has. Raises ConfigError if it has the most.
    """
    if before >= MOST_KINDS:
        raise ConfigError(
            f"Expected at most {MOST_KINDS} sets of bounds in a session, got one more. Use the same "
            "bounds for several queries."
        )
    pair = KeyPair.generate(terms.parameters)
    return pair, own.identity.vouch(_purpose(terms), own.directory.session, pair.public.key.raw)


def _purpose(terms: LinearTerms) -> bytes:
    """The purpose that a key's signature binds: queries under these terms, which size its flooding."""
    return b"scores" + terms.digest()


def public_of(directory: Directory, terms: LinearTerms, key: bytes) -> EncryptionKey:
    """The key holder's public key for these terms. Raises CryptoError if it is another's."""
    return checked(terms.parameters, directory.vouched(_purpose(terms), key))


@dataclass(frozen=True, kw_only=True, eq=False)
class CiphertextScoring:
    """The server's part of one exchange."""

    terms: LinearTerms
    public: EncryptionKey
    evaluator: LinearEvaluator
    queries: Queries
    cohort: int
    report: Report

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.queries)

    @property
    def sealed_bytes(self) -> int:
        return self.terms.ciphertext_bytes

    @property
    def replies(self) -> Limit:
        most = self.cohort * len(self.queries)
        return Limit((self.terms.reply_bytes + 8) * most + OVERHEAD, most)

    def admit(self, sender: str, sealed: bytes) -> None:
        # The residues are dropped: the slow work may run in another process and reads the bytes itself.
        self.evaluator.admit(sealed, sender=sender)

    def score(self, sent: tuple[Sent, ...]) -> Work:
        return Match(self, sent)

    def baselines(self) -> dict[str, Baseline]:
        """The encrypted weights that clients' ciphertexts are multiplied by, by name of the query."""
        owner = Encryptor(self.public, self.terms)
        return {
            name: self.evaluator.encrypted_baseline(owner.encrypt_baseline(query))
            for name, query in self.queries.items()
        }


def _encrypted(encryptor: Encryptor, hidden: Floats) -> Concealed:
    return Concealed("encrypted", sealed=encryptor.encrypt(hidden))


@dataclass(frozen=True, eq=False)
class Match:
    """A work order of the server: multiply each ciphertext by its baseline, and blind the product."""

    part: CiphertextScoring
    sent: tuple[Sent, ...]

    def run(self) -> Asked | Found:
        # Prepared once, since all clients' ciphertexts are multiplied by the same encoded weights.
        prepared = self.part.baselines()
        evaluator, blinded = self.part.evaluator, dict[Place, Blinded]()
        for one in self.sent:
            baseline = prepared[one.name]
            with blaming(self.part.report):
                blinded[one.place] = evaluator.match(one.sealed, baseline, one.clear, sender=one.sender)
        if not blinded:
            return {}
        items = tuple(one.request for one in blinded.values())
        return Asked(items, partial(Unblind, self.part, blinded))


@dataclass(frozen=True, eq=False)
class Unblind:
    """A work order of the server: subtract the masks from the key holder's replies."""

    part: CiphertextScoring
    blinded: Mapping[Place, Blinded]
    replies: tuple[bytes, ...]

    def run(self) -> Found:
        scores: dict[Place, float] = {}
        # Replies have no place: they are in the order of the items, which `blinded` keeps.
        for (place, own), reply in zip(self.blinded.items(), self.replies, strict=True):
            if reply != REFUSED:
                with blaming(self.part.report):
                    scores[place] = self.part.evaluator.unblind(own, reply, sender=KEY_HOLDER).value
        return scores
