"""The key holder of a matching: it reads the scores that an evaluator signed, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from securefl.core.arguments import checked
from securefl.core.errors import (
    DataError,
    LocalProtocolError,
    RemoteProtocolError,
    UnaccountedRelease,
)
from securefl.core.keys import SecretKey, Signature
from securefl.core.release import Charge, Release, ReleaseKey
from securefl.core.signing import SIGNATURE_BYTES, SigningKey, verify
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.matching.clients import ClientPublic
from securefl.matching.document import Document
from securefl.matching.keys import (
    SETS,
    EvaluatorPublic,
    PublicKeys,
    no_forgery,
    pads_key,
    pads_statement,
    require_ours,
    session_of,
    statement,
)
from securefl.matching.options import WORD_BITS, Options, Word
from securefl.matching.readers import Reader
from securefl.matching.sealed import Scores

if TYPE_CHECKING:
    from securefl.accounting.ledger import Ledger

_SIGNING: Final = 32


@dataclass(frozen=True)
class Revealed:
    """The opened scores.

        >>> from securefl.matching import Revealed
        >>> Revealed({"p1": 0.5}, {"p2": "Expected a score inside the declared bounds."}, 1e-3).scores["p1"]
        0.5

    Attributes:
        scores: divergences by label.
        refused: reasons by label, for requests that were not opened.
        error_bound: |score - divergence| <= error_bound for all scores at once, except with probability 1e-6.
            Under pads it always holds.

    Raises nothing.
    """

    scores: Mapping[str, float]
    refused: Mapping[str, str]
    error_bound: float


@dataclass(frozen=True)
class KeyHolder:
    """The key holder's secret and public keys, for one session.

    >>> import securefl
    >>> holder, evaluator = securefl.KeyHolder.generate(openings=10), securefl.Evaluator.generate()
    >>> sealed = securefl.Profile([1.0], [1.0]).encrypt(holder.public, evaluator.public, label="ward 3")
    >>> scores = evaluator.match(holder.public, securefl.Profile([0.0], [1.0]), [sealed])
    >>> round(holder.reveal(scores, evaluator.public).scores["ward 3"], 2)
    0.5
    >>> holder.public.raw  # no homomorphic key
    b''

    Raises:
        ConfigError: `generate` raises it for an unknown word, and for openings that are no whole number.
        DataError: `generate` raises it for a number of openings below 1 or above 2^40.
    """

    KIND: ClassVar = "secret-key"
    public: PublicKeys
    secrets: tuple[SecretKey, ...] = field(repr=False)
    signing: SigningKey = field(repr=False)
    opened: Openings = field(default_factory=Openings, repr=False, compare=False)

    @classmethod
    @checked
    def generate(cls, *, openings: int = 1000, parameters: Word = "pads") -> KeyHolder:
        """Fresh keys for at most `openings` scores in all. Under ciphertexts a larger number costs precision.

        The number limits the volume. It does not protect the key of an encrypted baseline from a malicious
        evaluator, which gets it within a few hundred openings. Openings with a declared baseline are checked.
        Under pads there is no such key.

        parameters: "pads" or "pads-128" make no homomorphic key. Another word: keys for every word.
        """
        # a larger number costs precision: each score's flooding is sized for all openings of the key
        if not 1 <= openings <= 2**40:
            raise DataError(f"Expected --openings from 1 to {2**40}, got {openings}. Take another number.")
        pairs = [] if parameters in WORD_BITS else [KeyPair.generate(one) for one in SETS]
        signing = SigningKey.generate()
        raw = b"".join(pair.public.key.raw for pair in pairs)
        agreement, session = pads_key(signing).public.raw, session_of(signing.public, raw, openings)
        pads = agreement + signing.sign(pads_statement(session, agreement)).raw
        public = PublicKeys(raw, signing.public, openings, signing.sign(statement(raw, openings)), pads)
        return cls(public, tuple(pair.secret for pair in pairs), signing)

    @checked
    def reveal(
        self,
        scores: Scores,
        evaluator: EvaluatorPublic,
        *,
        clients: Sequence[ClientPublic] = (),
        openings: Openings | None = None,
        ledger: Ledger | None = None,
        spread: float | None = None,
    ) -> Revealed:
        """Open the scores that this evaluator signed. Each passes the ledger as a release of its label.

        Args:
            scores: the evaluator's signed requests.
            evaluator: the evaluator's public keys.
            clients: the public keys of the clients whose profiles may be opened, under "strong" and
                "compact". Compare their fingerprints with the clients.
            openings: the durable count of openings. None: a count in memory that lasts as long as this
                object. A score that was opened before gets the same answer and is not counted again.
            ledger: the ledger that charges the releases. None: no ledger.
            spread: the largest `Bounds.spread` of a declared baseline that you agree to. None: the default.

        Returns:
            The scores by label, the reasons of refusals, and an error bound.

        Raises:
            ConfigError: an argument of another type, or a `spread` that is none of `Bounds`.
            DataError: scores of another session, evaluator or form, or of a larger spread.
            PrivacyError: the ledger refuses a charge.
        """
        options, length, labels = self._checked(scores, evaluator)
        if options.declared is not None:
            options.require_agreed(spread)
        given = frozenset(one.signing.raw for one in clients)
        files = options.files(length, self.public, evaluator.fingerprint)
        own, most = openings or self.opened, self.public.openings
        reader = Reader(self.signing, self.secrets, scores, evaluator, files, given, own, most)
        found, refused = {}, {}
        for label, request in zip(labels, reader.requests, strict=True):
            try:
                found[label] = self._released(label, request, reader, ledger)
            except RemoteProtocolError as error:
                refused[label] = str(error)
        return Revealed(found, refused, reader.error_bound)

    def _checked(self, scores: Scores, evaluator: EvaluatorPublic) -> tuple[Options, int, list[str]]:
        require_ours(scores.header, self.public.session, evaluator, "a file of scores")
        content = Document("encrypted-scores", scores.header, scores.body[:-SIGNATURE_BYTES])
        with no_forgery("a file of scores that the evaluator signed"):
            verify(evaluator.signing, Signature(scores.body[-SIGNATURE_BYTES:]), content.signed_part())
        return *Options.from_header(scores.header), scores.labels

    def _released(self, label: str, request: bytes, reader: Reader, ledger: Ledger | None) -> float:
        """The score of one request.

        Its charge is reserved before it is opened, and committed before the caller sees it. A request that
        was released before is answered from the store, and charged once.
        """
        if ledger is None:
            return reader.read(request, label).value
        # Who makes keys does not wait for the accountant.
        from dp_accounting import NonPrivateDpEvent, NoOpDpEvent

        # A score has no privacy noise, and only the key holder reads it.
        charge = Charge(server=NoOpDpEvent(), key_holder=NonPrivateDpEvent(), others=NoOpDpEvent())
        session, name = bytes.fromhex(self.public.session), reader.name(request)
        key = ReleaseKey(label, session, 1, 0, 0, f"score {name}")
        try:
            refusal = ledger.reserve([(key, charge)])
        except LocalProtocolError:  # reserved before, by this process or another
            refusal = {}
        if label in refusal:
            raise refusal[label]
        value = reader.read(request, label).value
        release = Release(key=key, unit="record", form="open", charge=charge, _numbers=np.array([value]))
        try:
            return float(ledger.open(release)[0].item())
        except UnaccountedRelease:
            # Committed: the same request was charged and opened before, and its answer is the stored one.
            if ledger.state(key) == "committed":
                return value
            raise

    # As files -------------------------------------------------------------------------------------

    def to_document(self) -> Document:
        """The secret file: the public keys and all secrets."""
        public = self.public.to_document()
        own = b"".join(secret.reveal() for secret in (*self.secrets, self.signing.secret))
        return Document(self.KIND, public.header, public.body + own)

    @classmethod
    def from_document(cls, content: Document) -> KeyHolder:
        """The keys of a secret file. Raises DataError for secrets that do not fit their public keys."""
        alone = len(content.body) == SIGNATURE_BYTES + _SIGNING
        sizes = [*(() if alone else (one.poly_modulus_degree for one in SETS)), _SIGNING]
        start = len(content.body) - sum(sizes)
        own = Document("public-key", content.header, content.body[: max(start, 0)])
        public = PublicKeys.from_document(own)
        secrets = []
        for size in sizes:
            secrets.append(SecretKey(content.body[start : start + size]))
            start += size
        found = cls(public, tuple(secrets[:-1]), SigningKey(secrets[-1]))
        announced = public.agreement == pads_key(found.signing).public
        if found.signing.public != public.signing or not announced:
            raise DataError(
                "Expected a secret key that fits its public key, got another. Restore both files."
            )
        return found
