"""Sealed messages of a matching: a client's profile for the evaluator, and scores for the key holder."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, cast

from securefl.core.arguments import checked
from securefl.core.errors import ConfigError, DataError
from securefl.core.linear import Floats
from securefl.core.signing import seal
from securefl.core.text_safety import folded, is_legible
from securefl.dp.moments import MeanVariance
from securefl.linear.encrypted import EncryptedFiles
from securefl.linear.encryptor import Encryptor
from securefl.matching.clients import ClientKey
from securefl.matching.document import Document
from securefl.matching.keys import EvaluatorPublic, PublicKeys
from securefl.matching.options import Options

PROFILE: Final = "encrypted-profile"
BASELINE: Final = "encrypted-baseline"
SCORES: Final = "encrypted-scores"
Kind = Literal["encrypted-profile", "encrypted-baseline"]
LONGEST_LABEL: Final = 200


def is_label(label: object) -> bool:
    """Whether a label is printable. A peer's label with control characters would write on the terminal."""
    return isinstance(label, str) and 1 <= len(label) <= LONGEST_LABEL and is_legible(label)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A profile without a score.

        >>> from securefl.matching import Refused
        >>> Refused(place=0, label="p1", why="Expected 4 elements as in the baseline, got 3.").label
        'p1'

    Attributes:
        place: its place among the given profiles.
        label: its label, or "profile 1" and so on if it has none.
        why: the reason.

    Raises nothing.
    """

    place: int
    label: str
    why: str


@dataclass(frozen=True, eq=False)
class Sealed:
    """A profile or baseline, encrypted for the key holder and sealed to the evaluator.

        >>> from securefl.matching import Sealed
        >>> Sealed("encrypted-profile", {"label": "ward 3"}, b"").label
        'ward 3'

    Attributes:
        kind: profile or baseline.
        header: public: session, evaluator, label and options.
        body: the sealed bytes.
        clipped: the number of values that its owner clipped into the bounds before encryption.
        floored: the number of variances that its owner raised to the floor. Only the owner knows these two
            numbers. Neither is part of the file.

    Raises:
        DataError: `label` raises it if the header has no printable label.
    """

    kind: Kind
    header: Mapping[str, Any]
    body: bytes = field(repr=False)
    clipped: int = 0
    floored: int = 0

    @property
    def label(self) -> str:
        """The profile's label. Scores are listed under it."""
        label = self.header.get("label")
        if not is_label(label):
            raise DataError(
                f"Expected a label of 1 to {LONGEST_LABEL} printable letters in the file, got another. Get "
                "it again."
            )
        return str(label)

    @property
    def model(self) -> object:
        """The name of its model in the header, which its sender wrote."""
        return self.header.get("model")

    def to_document(self) -> Document:
        return Document(self.kind, self.header, self.body)

    @classmethod
    def from_document(cls, content: Document) -> Sealed:
        return cls(cast(Kind, content.kind), content.header, content.body)

    def context(self) -> bytes:
        """The bytes that the seal binds: kind and header."""
        return Document(self.kind, self.header, b"").signed_part()


@checked
@dataclass(frozen=True, eq=False)
class Profile(MeanVariance):
    """Mean and population variance per element of a layer's output (FedProf v2, section 3.1).

    >>> import securefl
    >>> holder, evaluator = securefl.KeyHolder.generate(openings=10), securefl.Evaluator.generate()
    >>> own = securefl.Profile([0.1, 0.2], [1.0, 0.9])
    >>> sealed = own.encrypt(holder.public, evaluator.public, label="ward 3")
    >>> sealed.label, sealed.clipped
    ('ward 3', 0)

    Raises:
        DataError: what is no array of numbers, different shapes, non-finite values, negative variances, or a
            count that is no whole number from 1.

    Attributes:
        mean: (q,), an array of numpy, torch or pandas, or a list. It is kept as float64.
        variance: (q,), the same, each at least 0.
        count: the number of records, from 1.
        model: names the model whose outputs these are, as `securefl profile` does. "": it is not known.
    """

    mean: Floats
    variance: Floats
    count: int = 1
    model: str = ""

    @checked
    def encrypt(
        self,
        public: PublicKeys,
        evaluator: EvaluatorPublic,
        *,
        label: str = "profile",
        options: Options | None = None,
        own: ClientKey | None = None,
    ) -> Sealed:
        """The profile as a client sends it: encrypted to the key holder, sealed to the evaluator.

        A score is that of the values after clipping and flooring. `Sealed` counts the values that this
        changed.

        Args:
            public: the key holder's public keys.
            evaluator: the evaluator's public keys.
            label: the score's label, printable.
            options: the options of the matching. None: the defaults, which are pads.
            own: the client's signing key, which "strong" and "compact" need.

        Raises:
            DataError: an invalid profile or label, or a key holder's key without one for these parameters.
            ConfigError: an argument of another type; scores could wrap under these options; or under "strong"
                and "compact" no key to sign with, or no declared baseline.
        """
        options, length = options or Options(), len(self)
        values = options.features(self)
        found = values.split(options.variant)
        options.require_file(length, public.openings)
        options.require_declared()
        _require_label(label)
        if options.checked and own is None:
            raise ConfigError(
                f"Expected a client's key to sign with under --params {options.parameters} and --declared, "
                "got none. Make one (securefl keygen --role client), give its client.pub to the key holder, "
                "and give client.key as --key."
            )
        # For this session, evaluator, label and baseline.
        files = options.files(length, public, evaluator.fingerprint)
        told = bytes.fromhex(options.declared or "")
        hidden = files.message(found.hidden, label, told, None if own is None else own.signing)
        # The seal is a second layer: without it the key holder could read a profile in transit.
        message = hidden + found.clear.astype("<f8").tobytes()
        made = _sealed(PROFILE, message, self, public, evaluator, label, options)
        return replace(made, clipped=values.clipped, floored=values.floored)

    @checked
    def encrypt_baseline(
        self,
        public: PublicKeys,
        evaluator: EvaluatorPublic,
        *,
        label: str = "baseline",
        options: Options | None = None,
    ) -> Sealed:
        """Mode E: the profile as the baseline of a matching. The evaluator does not learn it.

        options: those of the matching, under "strong-encrypted". No opening of such a baseline is checked, so
        nobody gets it by default.

        Exceptions are those of `encrypt`. DataError also for other parameters.
        """
        options = options or Options()
        _require_label(label)
        files = options.files(len(self), public, evaluator.fingerprint)
        if not isinstance(files, EncryptedFiles):
            raise DataError(
                f"Expected the parameters of an encrypted baseline, got {options.parameters}. Under pads the "
                "evaluator matches a plain baseline. If it must not learn the baseline, use strong-encrypted "
                "on all sides: no opening is checked then, and an evaluator that breaks the protocol reads "
                "the key."
            )
        options.require_file(len(self), public.openings)
        own = options.query(self)
        linear = own.linear(options.variant, options.bounds)
        message = Encryptor(files.key, files.terms).encrypt_baseline(linear)
        made = _sealed(BASELINE, message, self, public, evaluator, label, options)
        return replace(made, floored=own.floored)


def _require_label(label: str) -> None:
    # refused here, where the owner can still change it
    if not is_label(label):
        raise DataError(
            f"Expected a label (by default the file's name) of 1 to {LONGEST_LABEL} printable letters, "
            f"got {label!r}."
        )


def _sealed(
    kind: Kind,
    message: bytes,
    profile: Profile,
    public: PublicKeys,
    evaluator: EvaluatorPublic,
    label: str,
    options: Options,
) -> Sealed:
    header = {
        "session": public.session,
        "evaluator": evaluator.fingerprint,
        "label": label,
        **options.to_header(len(profile)),
        **({"model": profile.model} if profile.model else {}),
    }
    # The header is readable but bound by the seal: with another label or other options it does not open.
    made = Sealed(kind, header, b"")
    return Sealed(kind, header, seal(evaluator.sealing, message, made.context()))


@dataclass(frozen=True, eq=False)
class Scores:
    """Signed requests to open one score each, under the labels of the profiles.

        >>> from securefl.matching import Scores
        >>> Scores({"labels": ["p1", "p2"]}, b"").labels
        ['p1', 'p2']

    Attributes:
        header: public: session, evaluator, labels and options.
        body: the requests and the evaluator's signature. Under pads the requests are sealed to the key
            holder.
        refused: the profiles without a request.
        floored: the number of variances of a plaintext baseline that were raised to the floor. Only the
            evaluator knows these two. Neither is part of the file.

    Raises:
        DataError: `labels` raises it for labels that occur twice, differ only by case or are not printable.
    """

    KIND: ClassVar = SCORES
    header: Mapping[str, Any]
    body: bytes = field(repr=False)
    refused: tuple[Refused, ...] = ()
    floored: int = 0

    @property
    def labels(self) -> list[str]:
        """The scores' labels, in order.

        Raises DataError for labels that occur twice, differ only by case or are not printable.
        """
        found = self.header.get("labels")
        # the evaluator signed the header, but may have written anything into it

        if (
            isinstance(found, list)
            and all(map(is_label, found))
            and len(set(map(folded, found))) == len(found) > 0
        ):
            return found
        raise DataError(
            f"Expected the scores' labels, each once and printable, got {reprlib.repr(found)}. "
            "Ask the evaluator to match again."
        )

    def to_document(self) -> Document:
        return Document(SCORES, self.header, self.body)

    @classmethod
    def from_document(cls, content: Document) -> Scores:
        return cls(content.header, content.body)
