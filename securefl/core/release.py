"""Releases: a value that depends on data, together with the privacy charge for opening it.

A mechanism returns a `Release`. Its numbers leave the data holder in two ways only: `Ledger.send` (bytes for
a peer) and `Ledger.open` (the value, for a caller's own training loop). Both commit the charge first.
`wire.encode` refuses a release without the ledger's permit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError, UnaccountedRelease
from securefl.core.keys import Guarded
from securefl.core.sparse import sparse
from securefl.core.text_safety import require_legible

if TYPE_CHECKING:  # loading it takes seconds, and a command that only reads keys should not wait
    from dp_accounting import DpEvent

Unit = Literal["record", "client"]
Adjacency = Literal["add-remove", "replace-one", "zero-out"]
"""Zero-out: a client's contribution becomes zero. Cohort and weights are public, and stay the same."""
Form = Literal["open", "masked", "encrypted", "sparse"]
"""Sparse: an open value that is written to a peer without its zeros."""

SERVER: Final = "server"
KEY_HOLDER: Final = "key-holder"
OTHERS: Final = "others"
PARTIES: Final = (SERVER, KEY_HOLDER, OTHERS)


def neighbours_missing(unit: Unit, adjacency: Adjacency) -> str | None:
    """Return why this unit and this adjacency do not fit together, or None if they do."""
    if unit == "client" and adjacency == "add-remove":
        return (
            'Expected adjacency = "zero-out" (or "replace-one") with unit = "client", got "add-remove": a '
            "client's contribution becomes zero, while cohort and weights, which are public, stay the same."
        )
    if unit == "record" and adjacency == "zero-out":
        return 'Expected adjacency = "add-remove" or "replace-one" with unit = "record", got "zero-out".'
    return None


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The privacy cost of opening a release, for each party as a `DpEvent` of dp-accounting. Raises nothing.

    Attributes:
        server, key_holder: the event that describes this party's view.
        others: the view of the other clients and of everybody else who sees the broadcast model.

    >>> from dp_accounting import GaussianDpEvent, NoOpDpEvent
    >>> from securefl.accounting import Charge
    >>> charge = Charge(server=GaussianDpEvent(2.0), key_holder=NoOpDpEvent(), others=GaussianDpEvent(2.0))
    >>> list(charge.by_party())
    ['server', 'key-holder', 'others']
    """

    server: DpEvent
    key_holder: DpEvent
    others: DpEvent

    def by_party(self) -> Mapping[str, DpEvent]:
        return {SERVER: self.server, KEY_HOLDER: self.key_holder, OTHERS: self.others}


@dataclass(frozen=True, order=True)
class ReleaseKey:
    """The permanent name of one release. The ledger treats a second release of this name as a replay."""

    holder: str
    session: bytes
    round: int
    stage: int
    attempt: int
    name: str

    def __post_init__(self) -> None:
        require_legible(self.holder, "a holder")
        require_legible(self.name, "the name of a release")
        place = (self.round, self.stage, self.attempt)
        if not all(isinstance(number, int) and 0 <= number < 2**32 for number in place):
            raise ConfigError(f"Expected round, stage and attempt from 0 to 2^32 - 1, got {place}.")


@final
@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Release(Guarded):
    """A sealed value with its charge. `protect` makes it, and only the ledger opens it.

    Attributes:
        key: the data holder, the place in the protocol and the value's name.
        unit: neighbouring data sets differ in one record or in one client.
        form: open or sparse (noised already, or without noise because the plan says so), masked or encrypted.
        charge: the cost of opening it, for each party.
        content: a fingerprint of the protected value under a secret of its holder; empty if a repetition
            needs no check.

    Raises:
        LocalProtocolError: if a caller pickles or copies it.
        UnaccountedRelease: if a message carries it without a committed charge.

    >>> from securefl.sums import Release
    >>> sorted(name for name in Release.__annotations__ if not name.startswith("_"))
    ['charge', 'content', 'form', 'key', 'unit']
    """

    _instead: ClassVar[str] = "hand it to Ledger.send or Ledger.open"

    key: ReleaseKey
    unit: Unit
    form: Form
    charge: Charge
    _numbers: NDArray[np.generic] = field()
    _sealed: bytes = b""
    content: bytes = b""

    # without numbers and bytes, so that a print or a log line does not disclose the value
    def __repr__(self) -> str:
        return f"Release({self.key.holder}, {self.key.name!r}, {self.form}, <sealed>)"

    @staticmethod
    def all_in(body: Any) -> Iterator[Release]:
        """Yield the releases in the fields of a message, also those inside tuples.

        The fields that are declared for them: in any other field the encoder refuses a release.
        """
        for name in _places(type(body)):  # type: ignore[arg-type]  # a class is hashable
            value = getattr(body, name)
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Release):
                    yield item


@cache
def _places(cls: Any) -> tuple[str, ...]:
    """The names of a message class's fields that are declared for releases."""
    return tuple(name for name, hint in cls.__wire__.fields if Release in (hint, *get_args(hint)))


@final
@dataclass(frozen=True)
class Delivered:
    """A release as its receiver decodes it: numbers and sealed bytes, without a charge. It is not trusted."""

    name: str
    form: Form
    numbers: NDArray[np.generic]
    sealed: bytes


def require_releases(releases: Sequence[Release], names: Sequence[str], form: Form) -> None:
    """Raise LocalProtocolError unless these are one release of each name, of this form."""
    if [(one.key.name, one.form) for one in releases] != [(name, form) for name in names]:
        raise LocalProtocolError(f"Expected one {form} release for each of {names}, got {releases}.")


def delivered(came: tuple[Any, ...], names: Sequence[str], form: Form) -> tuple[Delivered, ...]:
    """Return a client's vectors. Raises CryptoError unless they are one of each name, of this form."""
    parts = []
    for one in came:
        # An encrypted value is bytes without numbers, a masked one numbers without bytes.
        beside = one.numbers.size if form == "encrypted" else len(one.sealed)
        parts.append((one.name, one.form, beside))
    if parts != [(name, form, 0) for name in names]:
        raise CryptoError(
            f"Expected one {form} vector for each of {names}, got {len(came)} values of other names, forms "
            "or sizes: they are not in the sum."
        )
    return came


# `Permit` checks that its caller has this object. The check stops mistakes, not malice: Python hides nothing.
_LEDGER_ONLY = object()


@final
class Permit:
    """Proof that charges are committed. Only the ledger makes a permit."""

    __slots__ = ("_keys",)

    def __init__(self, keys: frozenset[ReleaseKey], *, issuer: object) -> None:
        if issuer is not _LEDGER_ONLY:
            raise UnaccountedRelease(
                "Expected the ledger alone to make a Permit, got a call from outside it. Use Ledger.send."
            )
        self._keys = keys

    def contents(self, release: Release) -> tuple[NDArray[np.generic], bytes]:
        """Return the sealed value. Raises UnaccountedRelease unless its charge is committed."""
        # The check is by key, so that a permit for one release does not open another.
        if release.key not in self._keys:
            raise UnaccountedRelease(
                f"Expected a committed charge, got none for {release!r}. Send it through Ledger.send."
            )
        return release._numbers, release._sealed

    def written(self, release: Release) -> tuple[NDArray[np.generic], bytes]:
        """Return the sealed value as a message carries it. Raises UnaccountedRelease as `contents` does."""
        numbers, sealed = self.contents(release)
        return (numbers[:0], sparse(numbers)) if release.form == "sparse" else (numbers, sealed)
