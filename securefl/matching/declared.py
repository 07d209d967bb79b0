"""A declared baseline: the digest of its weights, which an evaluator signs before clients encrypt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from securefl.core.agreement import fields
from securefl.core.entropy import fingerprint
from securefl.core.errors import DataError
from securefl.core.formats import prefix
from securefl.core.keys import Signature
from securefl.core.linear import LinearQuery
from securefl.core.signing import AgreementKey, SigningKey, verify
from securefl.linear.addressed import QUERY
from securefl.linear.turn import Declared, Terms
from securefl.matching.admission import differing_model
from securefl.matching.document import Document
from securefl.matching.keys import EvaluatorPublic, PublicKeys, no_forgery, require_ours
from securefl.matching.options import Options
from securefl.matching.profiles import Anchor
from securefl.matching.sealed import Profile

_SALT: Final = prefix("matching/salt")


def declared_weights(agreement: AgreementKey, terms: Terms, query: LinearQuery) -> Declared:
    """A baseline's weights. Raises ConfigError for weights outside the bounds.

    The salt follows from the evaluator's key and the weights, so the evaluator keeps nothing.
    """

    def salt(packed: bytes) -> bytes:
        return fingerprint(agreement.secret, _SALT, fields(terms.digest, packed))

    return Declared.of(query, terms, QUERY, salt=salt)


@dataclass(frozen=True, eq=False)
class Declaration:
    """The digest of a baseline and the options of its matching, signed by the evaluator.

    >>> import securefl
    >>> holder, evaluator = securefl.KeyHolder.generate(openings=10), securefl.Evaluator.generate()
    >>> base = securefl.Profile([0.0], [1.0])
    >>> declaration = evaluator.declare(holder.public, base, options=securefl.matching.Options())
    >>> options = declaration.checked(holder.public, evaluator.public)
    >>> sealed = securefl.Profile([1.0], [1.0]).encrypt(holder.public, evaluator.public, options=options)
    >>> scores = evaluator.match(holder.public, base, [sealed])
    >>> round(holder.reveal(scores, evaluator.public).scores["profile"], 2)
    0.5

    Attributes:
        header: public: session, evaluator, options, and the digest as the option `declared`.
        signature: the evaluator's.

    Raises:
        DataError: `checked` raises it for another session, evaluator or signature.
    """

    KIND: ClassVar = "declared-baseline"
    header: Mapping[str, Any]
    signature: Signature

    @classmethod
    def signed(
        cls, session: str, own: EvaluatorPublic, signing: SigningKey, header: Mapping[str, Any]
    ) -> Declaration:
        whole = {"session": session, "evaluator": own.fingerprint, **header}
        return cls(whole, signing.sign(Document(cls.KIND, whole, b"").signed_part()))

    def checked(
        self,
        public: PublicKeys,
        evaluator: EvaluatorPublic,
        *,
        spread: float | None = None,
        anchor: Anchor | None = None,
    ) -> Options:
        """The options to encrypt with.

        Args:
            public: the key holder's public keys.
            evaluator: the evaluator's public keys.
            spread: the largest `Bounds.spread` that you agree to. None: the default.
            anchor: the public anchor, to compare. None: the declared one is taken.

        Raises:
            ConfigError: `spread` is no spread of `Bounds`.
            DataError: a declaration of another session or evaluator, one that the evaluator did not sign, or
                one without a digest, of a larger spread, or with another anchor.
        """
        require_ours(self.header, public.session, evaluator, "a declaration")
        with no_forgery("a declaration that the evaluator signed"):
            verify(evaluator.signing, self.signature, Document(self.KIND, self.header, b"").signed_part())
        options, _ = Options.from_header(self.header)
        if options.declared is None:
            raise DataError("Expected a declaration with a digest of weights, got none. Get it again.")
        options.require_agreed(spread, anchor)
        return options

    def require_like(self, profile: Profile) -> None:
        """Raises DataError for a profile that would not be scored: of another length or model."""
        if (length := self.header.get("length")) != len(profile):
            raise DataError(
                f"Expected a profile of {length} elements, as was declared, got {len(profile)}. Profile by "
                "the model file of all parties."
            )
        if why := differing_model(profile.model, self.header.get("model")):
            raise DataError(why)

    def to_document(self) -> Document:
        return Document(self.KIND, self.header, self.signature.raw)

    @classmethod
    def from_document(cls, content: Document) -> Declaration:
        return cls(content.header, Signature(content.body))
