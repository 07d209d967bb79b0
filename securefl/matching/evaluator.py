"""The evaluator of a matching: it scores sealed profiles against a baseline and learns no score.

It is trusted to follow the protocol. Under pads a malicious one chooses which one word of each profile the
key holder reads, and learns nothing itself. With a declared baseline it has a score of each profile read and
nothing else, unless under CKKS one of the clients helps it (`linear.checked`). With an encrypted baseline it
gets the whole key within a few hundred openings of requests that it made up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from securefl.core.arguments import checked
from securefl.core.errors import ConfigError, CryptoError, DataError, RemoteProtocolError
from securefl.core.keys import SecretKey
from securefl.core.linear import Floats
from securefl.core.signing import AgreementKey, SigningKey, unseal
from securefl.linear.encrypted import EncryptedFiles, LinearEvaluator
from securefl.linear.turn import Declared
from securefl.matching.admission import Candidate, NothingLeft, differs_from, fitting
from securefl.matching.declared import Declaration, declared_weights
from securefl.matching.document import Document
from securefl.matching.keys import EvaluatorPublic, PublicKeys, evaluator_statement, require_ours
from securefl.matching.matched import Matched
from securefl.matching.matchers import Matcher
from securefl.matching.options import Options
from securefl.matching.sealed import BASELINE, PROFILE, Profile, Refused, Scores, Sealed


@dataclass(frozen=True)
class Evaluator:
    """The evaluator's keys, for any number of sessions.

    >>> import securefl
    >>> holder, evaluator = securefl.KeyHolder.generate(openings=10), securefl.Evaluator.generate()
    >>> near, far = (securefl.Profile([mean], [1.0]) for mean in (0.1, 3.0))
    >>> sealed = [p.encrypt(holder.public, evaluator.public, label=n) for n, p in (("a", near), ("b", far))]
    >>> scores = evaluator.match(holder.public, securefl.Profile([0.0], [1.0]), sealed)
    >>> scores.labels, scores.refused
    (['a', 'b'], ())

    Raises nothing.
    """

    KIND: ClassVar = "evaluator-key"
    agreement: AgreementKey
    signing: SigningKey
    matched: Matched = field(default_factory=Matched, repr=False, compare=False)

    @classmethod
    def generate(cls) -> Evaluator:
        """Fresh keys, from the operating system's randomness."""
        return cls(AgreementKey.generate(), SigningKey.generate())

    @property
    def public(self) -> EvaluatorPublic:
        """The public keys, for clients and the key holder."""
        return EvaluatorPublic(self.agreement.public, self.signing.public)

    @checked
    def match(
        self,
        public: PublicKeys,
        baseline: Profile | Sealed,
        sealed: Sequence[Sealed],
        *,
        options: Options | None = None,
        matched: Matched | None = None,
    ) -> Scores:
        """Score every profile that fits, by its divergence from the baseline, for the key holder to open.

        Args:
            public: the key holder's public keys.
            baseline: a Profile that this evaluator knows; under "strong-encrypted" one that its owner
                encrypted (mode E).
            sealed: the clients' profiles.
            options: the options that all profiles must have. None: those of all profiles, if they agree.
            matched: the durable record of profiles under pads, each of which is matched with one baseline.
                None: a record in memory that lasts as long as this object.

        Returns:
            The signed requests. `Scores.refused` names the profiles without a score.

        Raises:
            NothingLeft: no profile can be scored.
            ConfigError: an argument of another type.
            ConfigError, DataError, RemoteProtocolError: the baseline cannot be used, or there are more
                profiles than one file of scores, or the key's openings, allow.
        """
        length = self._length(public, baseline)
        candidates, refused = self._candidates(public, sealed)
        options, found, more = fitting(candidates, options, length, baseline.model)
        refused += more
        if options is None or not found:
            raise NothingLeft(_in_order(refused))
        _require_few(len(found), options.most_at_once(length, public.openings), public.openings)
        messages = (self._unsealed(one.sealed) for one in found)
        matcher, floored = self._matcher(public, baseline, options, length, messages, matched or self.matched)
        requests, labels = [], []
        for one in found:
            try:
                requests.append(matcher.request(self._unsealed(one.sealed), one.label))
                labels.append(one.label)
            except (RemoteProtocolError, DataError) as error:
                refused.append(Refused(place=one.place, label=one.label, why=str(error)))
        if not requests:
            raise NothingLeft(_in_order(refused))
        header: dict[str, Any] = {
            "session": public.session,
            "evaluator": self.public.fingerprint,
            "labels": labels,
            **options.to_header(length),
        }
        content = Document("encrypted-scores", header, matcher.body(requests, header, public))
        # Over labels and requests together: in transit, no score can be listed under another label.
        signature = self.signing.sign(content.signed_part())
        return Scores(header, content.body + signature.raw, _in_order(refused), floored)

    def _length(self, public: PublicKeys, baseline: Profile | Sealed) -> int:
        """The baseline's length. Raises DataError for another kind, session or evaluator."""
        if not isinstance(baseline, Sealed):
            return len(baseline)
        self._check(public, baseline, BASELINE)
        return Options.from_header(baseline.header)[1]

    def _candidates(
        self, public: PublicKeys, sealed: Sequence[Sealed]
    ) -> tuple[list[Candidate], list[Refused]]:
        """The profiles for this session and evaluator whose seals open, and the refused ones."""
        found: list[Candidate] = []
        refused: list[Refused] = []
        for place, one in enumerate(sealed):
            label = f"profile {place + 1}"
            try:
                label = one.label
                self._check(public, one, PROFILE)
                options, length = Options.from_header(one.header)
                self._unsealed(one)  # the seal binds the header: if it opens, the header is unchanged
                found.append(Candidate(place=place, sealed=one, label=label, options=options, length=length))
            except DataError as error:
                refused.append(Refused(place=place, label=label, why=str(error)))
        return found, refused

    def _matcher(
        self,
        public: PublicKeys,
        baseline: Profile | Sealed,
        options: Options,
        length: int,
        messages: Iterable[bytes],
        matched: Matched,
    ) -> tuple[Matcher, int]:
        """The requests under these options, and the number of floored variances, if known."""
        files = options.files(length, public, self.public.fingerprint)
        if isinstance(baseline, Sealed):
            if not isinstance(files, EncryptedFiles):
                raise DataError(
                    f"Expected a plaintext baseline under --params {options.parameters}, got an encrypted "
                    "one. Use strong-encrypted, on all sides."
                )
            _require_fitting(baseline, options, length)
            evaluator = LinearEvaluator(files.key, files.terms, self.signing)
            concealed = evaluator.encrypted_baseline(self._unsealed(baseline), sender=baseline.label)

            def item(raw: bytes, clear: Floats, label: str) -> bytes:
                return evaluator.addressed(raw, concealed, clear, sender=label)

            return Matcher(files, item, b"", messages, matched), 0
        if isinstance(files, EncryptedFiles):
            raise DataError(
                "Expected an encrypted baseline under --params strong-encrypted, got a plaintext one. Have "
                "its owner encrypt it (securefl encrypt --params strong-encrypted --baseline)."
            )
        declared, floored = self._declared(files.terms, options, baseline)
        if options.declared is not None and declared.told.hex() != options.declared:
            raise ConfigError(
                "Expected the baseline that was declared to the clients, got another. Give that one, or "
                "declare this one and have the profiles encrypted again."
            )
        head = b"" if options.declared is None else declared.head
        return Matcher(files, partial(files.item, declared), head, messages, matched), floored

    @checked
    def declare(self, public: PublicKeys, baseline: Profile, *, options: Options) -> Declaration:
        """Declare a baseline before clients encrypt, so that their profiles are scored with no other.

        The key holder then learns the baseline. The same arguments give the same digest, so nothing is kept.

        Args:
            public: the key holder's public keys.
            baseline: the baseline of the match to come.
            options: the options of the matching.

        Returns:
            The declaration, for the clients.

        Raises:
            ConfigError: a baseline outside the bounds, or options of an encrypted one.
            DataError: an invalid profile.
        """
        length = len(baseline)
        # Any digest says that weights are declared. It refuses those of an encrypted baseline.
        told = replace(options, declared=bytes(32).hex())
        files = told.files(length, public, self.public.fingerprint)
        declared, _ = self._declared(files.terms, told, baseline)
        made = replace(options, declared=declared.told.hex())
        header = {**made.to_header(length), "model": baseline.model}
        return Declaration.signed(public.session, self.public, self.signing, header)

    def _declared(self, terms: Any, options: Options, baseline: Profile) -> tuple[Declared, int]:
        """The weights of a baseline, and the number of its floored variances."""
        query = options.query(baseline)
        linear = query.linear(options.variant, options.bounds)
        # With plaintexts in the profiles, a constant depends on each of them: each request checks it.
        if not terms.bounds.clear and terms.bounds.product + abs(linear.offset) > terms.capacity:
            raise ConfigError(
                f"Expected a baseline whose scores fit --params {options.parameters}, got one whose constant "
                f"{linear.offset:.3g} makes them wrap. Give all parties a public --anchor near the baseline, "
                "a smaller --weight-bound, or --params strong."
            )
        return declared_weights(self.agreement, terms, linear), query.floored

    def _unsealed(self, one: Sealed) -> bytes:
        try:
            return unseal(self.agreement, one.body, one.context())
        except CryptoError as error:
            raise DataError(f"{error} Get it again.") from None

    def _check(self, public: PublicKeys, one: Sealed, kind: str) -> None:
        """Raises DataError unless the message is of this kind, session and evaluator."""
        if one.kind != kind:
            raise DataError(f"Expected an {kind}, got an {one.kind}. Encrypt it as such.")
        require_ours(one.header, public.session, self.public, f"an {kind}")

    # As files -------------------------------------------------------------------------------------

    def to_documents(self) -> tuple[Document, Document]:
        """The secret file and the public file."""
        own = self.public
        secret = self.agreement.secret.reveal() + self.signing.secret.reveal()
        signature = self.signing.sign(evaluator_statement(own.sealing.raw + own.signing.raw))
        return Document(self.KIND, {"fingerprint": own.fingerprint}, secret), own.to_document(signature)

    @classmethod
    def from_document(cls, content: Document) -> Evaluator:
        """The keys of a secret file. Raises DataError if they differ from the header's."""
        if len(content.body) != 64:
            raise DataError(f"Expected an evaluator's key of 64 bytes, got {len(content.body)}. Restore it.")
        found = cls(AgreementKey(SecretKey(content.body[:32])), SigningKey(SecretKey(content.body[32:])))
        if content.header.get("fingerprint") != found.public.fingerprint:
            raise DataError("Expected the evaluator's key that the header names, got another. Restore it.")
        return found


def _require_fitting(baseline: Sealed, options: Options, length: int) -> None:
    own = Candidate(
        place=0,
        sealed=baseline,
        label=baseline.label,
        options=Options.from_header(baseline.header)[0],
        length=length,
    )
    if why := differs_from(options, length, None)(own):
        raise DataError(f"Expected a baseline that fits the profiles, got {baseline.label}: {why}")


def _require_few(count: int, most: int, openings: int) -> None:
    if count > most:
        why = "the key was made with" if most == openings else "a file of scores holds no more; the key has"
        raise ConfigError(
            f"Expected at most {most:,} profiles in one match ({why} --openings {openings}), got {count:,}. "
            "Match fewer at a time."
        )


def _in_order(refused: Sequence[Refused]) -> tuple[Refused, ...]:
    return tuple(sorted(refused, key=lambda one: one.place))
