"""The public options of a matching. Clients and the baseline's owner must choose the same."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

import numpy as np

from securefl.core.arguments import checked
from securefl.core.errors import ConfigError, DataError
from securefl.core.formats import prefix
from securefl.core.linear import spread_of
from securefl.dp.moments import MeanVariance
from securefl.he.parameters import COMPACT, STRONG_DECLARED, STRONG_ENCRYPTED, Parameters
from securefl.linear.addressed import PadFiles
from securefl.linear.addressed_checked import CheckedFiles
from securefl.linear.checks import Checks
from securefl.linear.encrypted import EncryptedFiles
from securefl.linear.pad_terms import PadTerms
from securefl.linear.terms import LinearTerms
from securefl.matching.document import LARGEST_HEADER, LIMITS, header_bytes
from securefl.matching.keys import PublicKeys
from securefl.matching.profiles import Anchor, Bounds, Features, ProfileQuery, Variant, features, query

Word = Literal["pads", "pads-128", "strong", "compact", "strong-encrypted"]
WORDS: Final[tuple[Word, ...]] = get_args(Word)
WORD_BITS: Final[Mapping[Word, int]] = {"pads": 64, "pads-128": 128}
"""The length of masked words. The other parameters are those of a homomorphic key."""
RINGS: Final[Mapping[Word, Parameters]] = {
    "strong": STRONG_DECLARED,
    "strong-encrypted": STRONG_ENCRYPTED,
    "compact": COMPACT,
}
"""The parameters of the homomorphic keys."""
LONGEST: Final = 2**20
"""The largest number of elements of a profile in a file."""
FLAGS: Final = {
    "mean": "--mean-bound",
    "variance_low": "--variance-low",
    "variance_high": "--variance-high",
    "weight": "--weight-bound",
    "spread": "--spread",
}
"""The flag of each bound, for messages. In Python each is a field of `Bounds`."""
Files = PadFiles | CheckedFiles | EncryptedFiles
"""How the parties of a matching conceal, send on and read a vector."""
_FAR: Final = 1e18
_ANCHOR: Final = "a public --anchor near it (securefl anchor)."
_BESIDE: Final = 1024
"""More bytes than a sealed profile has beside its header, ciphertexts and plaintext values."""


def default_bounds(parameters: Word) -> Bounds:
    """The default bounds of each parameter set."""
    # Most have room for models' profiles without an anchor. The modulus of `compact` has less room.
    narrow = {"pads": Bounds(), "compact": Bounds(mean=16, variance_high=64, weight=16)}
    return narrow.get(parameters, Bounds(weight=1024))


@checked
@dataclass(frozen=True, eq=False)
class Options:
    """The public options of a matching.

        >>> from securefl.matching import Options
        >>> Options().error_bound(length=10, openings=10) < 1e-3, Options(parameters="compact").bounds.mean
        (True, 16.0)
        >>> Options().bounds.weight, Options(parameters="pads-128").error_bound(84, 1) < 1e-8
        (32.0, True)

    Attributes:
        variant: "full" encrypts means and variances. "mean-only" leaves the variances readable by the
            evaluator.
        parameters: "pads" (no homomorphic key) or "pads-128" (twice the bytes; under the default bounds the
            scores are exact to 1e-8). "strong" or "compact" (CKKS, with a declared baseline; compact takes a
            quarter of the bytes, and its scores are coarser). "strong-encrypted" (CKKS, with an encrypted
            baseline: mode E, whose openings are not checked).
        bounds: a client clips anchored values to these before encryption. Error bounds follow from them.
            None: those of `Bounds` (pads), or those with weights up to 1024 (strong, strong-encrypted,
            pads-128), which have room for models' profiles, or narrow ones (compact), whose modulus has less
            room.
        anchor: public centre and scale per element. None is 0 and 1.
        declared: the digest of the one baseline that a profile is scored with, 64 hex digits
            (`Declaration.checked`). The key holder learns it. "strong" and "compact" need it for a profile.
            None: under pads, any one baseline. An encrypted baseline has none.

    Raises:
        ConfigError: an unknown variant or word, bounds or an anchor of another type, or `declared` is no
            digest, or that of an encrypted baseline.
    """

    variant: Variant = Variant.FULL
    parameters: Word = "pads"
    bounds: Bounds = None  # type: ignore[assignment]  # set below, since it depends on the parameters
    anchor: Anchor | None = None
    declared: str | None = None

    def __post_init__(self) -> None:
        if self.bounds is None:
            object.__setattr__(self, "bounds", default_bounds(self.parameters))
        if self.declared is not None and not _is_digest(self.declared):
            raise ConfigError(
                f"Expected a declared baseline as 64 hex digits, got {reprlib.repr(self.declared)}. Take the "
                "options of a Declaration."
            )
        if self.declared is not None and self.encrypted_baseline:
            raise ConfigError(
                "Expected no declared baseline under --params strong-encrypted, whose baseline is encrypted. "
                "Declare one under pads, strong or compact."
            )

    @property
    def padded(self) -> bool:
        """Whether words are masked by pads, so that there is no homomorphic key."""
        return self.parameters in WORD_BITS

    @property
    def encrypted_baseline(self) -> bool:
        """Whether the baseline is encrypted (mode E). No opening of one can be checked."""
        return self.parameters == "strong-encrypted"

    @property
    def checked(self) -> bool:
        """Whether ciphertexts are opened against a declared baseline."""
        return not (self.padded or self.encrypted_baseline)

    def require_declared(self) -> None:
        """Raises ConfigError for ciphertexts of plaintext weights that no declaration binds."""
        if self.checked and self.declared is None:
            raise ConfigError(
                f"Expected a declared baseline under --params {self.parameters}, got none: its openings are "
                "checked against a declaration. Ask the evaluator for one (securefl declare), and give it as "
                "--declared. Or take pads."
            )

    def require_agreed(self, spread: float | None = None, anchor: Anchor | None = None) -> None:
        """Check options that the evaluator declared against a party's own word on them.

        Args:
            spread: the largest `Bounds.spread` that the party agrees to. None: the default.
            anchor: the public anchor that the party has. None: it knows none, and takes the declared one.

        Raises:
            ConfigError: `spread` is no spread of `Bounds`.
            DataError: a larger spread, or another anchor.
        """
        most, found = (Bounds() if spread is None else Bounds(spread=spread)).spread, self.bounds.spread
        if found > most:
            raise DataError(
                f"Expected a declared baseline of a spread up to {most:g}, got {found:g}: one weight may "
                "count for nearly all, so that a score is nearly one entry of a profile. Ask the evaluator "
                f"for another declaration, or agree to this one: {FLAGS['spread']} {found:g}"
            )
        own = [] if self.anchor is None else [*self.anchor.centre, *self.anchor.scale]
        if anchor is not None and own != [*anchor.centre, *anchor.scale]:
            raise DataError(
                "Expected a declaration with the anchor of --anchor, got another one or none: with huge "
                "scales a score is nearly one entry of a profile. Ask the evaluator which anchor is public."
            )

    def files(self, length: int, public: PublicKeys, evaluator: str) -> Files:
        """The cipher for profiles of `length` elements, between this key holder and evaluator.

        evaluator: its fingerprint. Raises ConfigError if scores could wrap, and DataError if the key holder
        has no key of these parameters.
        """
        place = bytes.fromhex(public.session) + bytes.fromhex(evaluator)
        return self._files(length, public.openings, place, public)

    def _files(
        self, length: int, openings: int, place: bytes = b"", public: PublicKeys | None = None
    ) -> Files:
        try:
            return self._within(length, openings, place, public)
        except ConfigError:
            raise ConfigError(self._without_room(length, openings)) from None

    def _within(
        self, length: int, openings: int, place: bytes = b"", public: PublicKeys | None = None
    ) -> Files:
        """The cipher under these bounds. Raises ConfigError if scores could wrap."""
        linear, dealt = self.bounds.linear(length, self.variant), self.declared is None
        if self.padded:
            context, bits = prefix("matching/pads") + place, WORD_BITS[self.parameters]
            pads = PadTerms(bounds=linear, context=context, word_bits=bits, dealt=dealt)
            return PadFiles(pads, None if public is None else public.agreement)
        terms = LinearTerms(parameters=RINGS[self.parameters], bounds=linear, scores=openings)
        key = None if public is None else public.of(terms.parameters)
        if self.encrypted_baseline:
            return EncryptedFiles(terms, key)
        return CheckedFiles(Checks(terms=terms, context=prefix("matching/checked") + place), key)

    def _without_room(self, length: int, openings: int) -> str:
        """What does not fit, by flag and value, and the largest value of a flag that would."""
        words = vars(self.bounds)
        given = ", ".join(f"{flag} {words[name]:g}" for name, flag in FLAGS.items() if name != "spread")
        fitting = {name: self._largest(name, length, openings) for name in ("weight", "mean")}
        fixes = [f"{FLAGS[name]} {value:.3g} or less" for name, value in fitting.items() if value is not None]
        if not self.padded and self._fits(length, 1):
            fixes.append("a key of fewer --openings")
        if self.padded and replace(self, parameters="pads-128")._fits(length, openings):
            fixes.append("--params pads-128")
        key = "" if self.padded else f" and a key of --openings {openings}"
        return (
            f"Expected bounds under which scores of {length:,} elements fit --params {self.parameters}{key}, "
            f"got {given}: they could wrap. Give all parties "
            f"{', or '.join(fixes) or 'tighter bounds, or profiles of fewer elements'}. An --anchor near the "
            "profiles keeps them inside tighter bounds."
        )

    def _fits(self, length: int, openings: int) -> bool:
        try:
            self._within(length, openings)
        except ConfigError:
            return False
        return True

    def _largest(self, name: str, length: int, openings: int) -> float | None:
        """The largest value of a bound, rounded down, under which scores cannot wrap, or None."""
        for step in range(1, 400):
            # steps of a tenth: a person types the value, and the rest of the room costs precision only
            value = float(f"{getattr(self.bounds, name) / 1.1**step:.2g}")
            if replace(self, bounds=replace(self.bounds, **{name: value}))._fits(length, openings):
                return value
        return None

    def require_file(self, length: int, openings: int) -> None:
        """Raise ConfigError unless the evaluator can read a sealed profile of this length from its file.

        The error names what is too large: the elements, the anchor, or the bounds.
        """
        message = self.message_bytes(length, openings)
        most = LIMITS["encrypted-profile"]
        try:
            header = header_bytes(self.to_header(length))
        except DataError as error:
            raise ConfigError(
                f"Expected an --anchor that fits a file's header, got one of {length:,} elements. {error} "
                "Shorten its numbers, or leave it out."
            ) from None
        size = header + _BESIDE + message
        if length > LONGEST or size > most:
            smaller = "" if self.padded else " Under --params pads it takes below 1 %."
            raise ConfigError(
                f"Expected a profile of at most {LONGEST:,} elements whose file has at most {most:,} bytes, "
                f"got {length:,} elements and {size:,} bytes under --params {self.parameters} and --variant "
                f"{self.variant.value}. Profile a smaller layer.{smaller}"
            )

    def message_bytes(self, length: int, openings: int) -> int:
        """The length of a client's message before it is sealed. Raises ConfigError if scores could wrap."""
        clear = 8 * self.bounds.linear(length, self.variant).clear_length
        return self._files(length, openings).message_bytes + clear

    def most_at_once(self, length: int, openings: int) -> int:
        """The most profiles of this length that one match takes: its file of scores holds no more."""
        files = self._files(length, openings)
        # Told weights stand once before the requests.
        room = LIMITS["encrypted-scores"] - LARGEST_HEADER - files.head_bytes
        return max(0, min(openings, room // files.item_bytes))

    def error_bound(self, length: int, openings: int) -> float:
        """The largest |score - divergence| of all scores that a key opens, except with probability 1e-6.

        Under pads it always holds, and does not depend on the number of openings.
        """
        return self._files(length, openings).error_bound(openings)

    def _anchor(self, length: int) -> Anchor:
        if self.anchor is None:
            return Anchor(np.zeros(length), np.ones(length))
        if len(self.anchor.centre) != length:
            raise ConfigError(
                f"Expected an --anchor of {length} elements, as the profile has, got "
                f"{len(self.anchor.centre)}. Take the one that all parties have."
            )
        return self.anchor

    def features(self, profile: MeanVariance) -> Features:
        """A client's values: floored, anchored, clipped."""
        return features(profile, self._anchor(len(profile)), self.bounds)

    @np.errstate(all="ignore")
    def query(self, baseline: MeanVariance) -> ProfileQuery:
        """The baseline's values, floored and anchored in the same way.

        Raises ConfigError if the bounds would change the baseline.
        """
        made = query(baseline, self._anchor(len(baseline)), self.bounds)
        if fault := self._fault(made):
            raise ConfigError(f"{fault} {self.way_on(baseline)} The scores' error grows with the bounds.")
        return made

    def _fault(self, made: ProfileQuery) -> str:
        """Why the bounds refuse a baseline, or "" if they take it."""
        low, high, most = self.bounds.variance_low, self.bounds.variance_high, self.bounds.weight
        if made.clipped:
            return (
                f"Expected the baseline's {len(made.mean)} variances inside {FLAGS['variance_low']} {low:g} "
                f"to {FLAGS['variance_high']} {high:g}, got {made.clipped} that lie outside the declared "
                "bounds."
            )
        if not (needed := self._weight_of(made)) <= most:
            return f"Expected a baseline of weights up to {FLAGS['weight']} {most:g}, got {needed:.4g}."
        weights = made.split(self.variant).hidden
        spread, largest = spread_of(weights), self.bounds.largest_spread(len(weights))
        if spread <= largest:
            return ""
        return (
            f"Expected a baseline whose largest weight is up to {largest:.4g} times the root mean square of "
            f"all ({FLAGS['spread']} {self.bounds.spread:g}), got {spread:.4g} times: its score would nearly "
            "be one element."
        )

    @np.errstate(all="ignore")
    def way_on(self, profile: MeanVariance) -> str:
        """What all parties can give so that a profile fits, as a client's and as a baseline.

        Flags are named if they were tried and leave scores precise, with powers of two, so that parties agree
        sooner. None makes room for a larger spread, which is a matter of trust.
        """
        anchor = self._anchor(len(profile))
        there = query(profile, anchor, Bounds(mean=_FAR, variance_low=1 / _FAR, variance_high=_FAR))
        # An encrypted baseline has no pads. A weight may be infinite, which a query refuses.
        for word in () if self.encrypted_baseline else dict.fromkeys((self.parameters, "pads-128")):
            usual = vars(default_bounds(word))
            wide = dict(vars(self.bounds) if word == self.parameters else usual)
            with suppress(ConfigError, DataError):
                most = {"mean": np.abs(there.mean).max(), "variance_high": there.variance.max()}
                most["weight"] = self._weight_of(there)
                wide |= {name: max(wide[name], np.exp2(np.ceil(np.log2(most[name])))) for name in most}
                wide["variance_low"] = min(
                    wide["variance_low"], np.exp2(np.floor(np.log2(there.variance.min())))
                )
                own = replace(self, parameters=word, bounds=Bounds(**wide))
                fault = own._fault(query(profile, anchor, own.bounds))
                if own.padded and own.error_bound(len(profile), 1) < 0.01 and not fault:
                    flags = [f"{FLAGS[name]} {wide[name]:g}" for name in wide if wide[name] != usual[name]]
                    return f"Give all parties {' '.join([f'--params {word}', *flags])}, or {_ANCHOR}"
        return f"Give all parties {_ANCHOR}"

    def _weight_of(self, made: ProfileQuery) -> float:
        """The smallest `weight` bound that holds for this baseline."""
        linear = made.linear(self.variant, self.bounds)
        row, largest = linear.hidden, linear.bounds.weight_norm
        if self.encrypted_baseline:
            row = np.concatenate([row, linear.clear, [linear.offset / linear.bounds.scale]])
            largest = linear.bounds.row_norm
        return self.bounds.weight * float(np.linalg.norm(row)) / largest

    # As a header ----------------------------------------------------------------------------------

    def to_header(self, length: int) -> dict[str, Any]:
        """The options as a file's header."""
        anchor = self.anchor
        # No entry without a declaration: files of before have none.
        declared = {} if self.declared is None else {"declared": self.declared}
        return {
            **declared,
            "length": length,
            "variant": self.variant.value,
            "parameters": self.parameters,
            "bounds": dict(vars(self.bounds)),
            "anchor": None
            if anchor is None
            else {"centre": anchor.centre.tolist(), "scale": anchor.scale.tolist()},
        }

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> tuple[Options, int]:
        """The options and the length in a file's header. Raises DataError that names the invalid option."""
        length, word, variant = (header.get(name) for name in ("length", "parameters", "variant"))
        if type(length) is not int or not 1 <= length <= LONGEST:
            raise _unfit("length", f"a whole number from 1 to {LONGEST}", length)
        if word not in WORDS:
            raise _unfit("parameters", f"one of {', '.join(WORDS)}", word)
        if variant not in [one.value for one in Variant]:
            raise _unfit("variant", "'full' or 'mean-only'", variant)
        # null is no anchor; an absent entry, or another false value, is damage
        anchor = None if header.get("anchor", ...) is None else _anchor(header.get("anchor"), length)
        declared = header.get("declared")
        if "declared" in header and (not _is_digest(declared) or word == "strong-encrypted"):
            raise _unfit("declared", "64 hex digits, under pads, strong or compact", declared)
        if declared is None and word in ("strong", "compact"):
            raise DataError(
                f"Expected the digest of a declared baseline in a file of {word}, got none: an evaluator "
                "could read the key by it. Make it again: under --params pads, with --declared, or under "
                "--params strong-encrypted with an encrypted baseline."
            )
        return cls(Variant(variant), word, _bounds(header.get("bounds")), anchor, declared), length


def _is_digest(found: object) -> bool:
    return isinstance(found, str) and len(found) == 64 and set(found) <= set("0123456789abcdef")


def _bounds(found: Any) -> Bounds:
    names = {one.name for one in fields(Bounds)}
    try:
        if set(found) != names or not _are_numbers(found.values()):
            raise ValueError
        return Bounds(**found)
    except (TypeError, ValueError, AttributeError, OverflowError, ConfigError):
        raise _unfit("bounds", f"numbers above 0 for {', '.join(sorted(names))}", found) from None


def _anchor(found: Any, length: int) -> Anchor:
    try:
        if set(found) != {"centre", "scale"}:
            raise ValueError
        centre, scale = found["centre"], found["scale"]
        if not (len(centre) == len(scale) == length and _are_numbers([*centre, *scale])):
            raise ValueError
        return Anchor(np.array(centre, dtype=np.float64), np.array(scale, dtype=np.float64))
    except (TypeError, ValueError, OverflowError, DataError):
        wanted = f"null, or {length} numbers each as centre and as scale"
        raise _unfit("anchor", wanted, found) from None


def _are_numbers(values: Iterable[object]) -> bool:
    return all(type(value) in (int, float) for value in values)


def _unfit(name: str, wanted: str, found: object) -> DataError:
    # reprlib: a peer's text may be long or contain terminal escapes
    return DataError(
        f"Expected {name} in the file's header as {wanted}, got {reprlib.repr(found)}. Get the file again."
    )
