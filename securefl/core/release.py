"""A release: a value that depends on data, sealed together with the charge of opening it.

A mechanism returns a `Release`. Its numbers leave the data holder in two ways only: `Ledger.send` (bytes for
a peer) and `Ledger.open` (the value, for a foreign training loop). Both commit the charge first.
`wire.encode` refuses a release without the ledger's permit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, UnaccountedRelease
from securefl.core.keys import Guarded
from securefl.core.sparse import sparse
from securefl.core.text_safety import require_legible

if TYPE_CHECKING:  # to load it takes seconds, which a command that only reads keys need not wait
    from dp_accounting import DpEvent

Unit = Literal["record", "client"]
Adjacency = Literal["add-remove", "replace-one", "zero-out"]
"""Zero-out: a client's contribution becomes nothing. Cohort and weights are public, and stay."""
Form = Literal["open", "masked", "encrypted", "sparse"]
"""Sparse: open, and written to a peer without its zeros."""

SERVER: Final = "server"
KEY_HOLDER: Final = "key-holder"
OTHERS: Final = "others"
PARTIES: Final = (SERVER, KEY_HOLDER, OTHERS)


def neighbours_missing(unit: Unit, adjacency: Adjacency) -> str | None:
    """Return why this unit has no neighbours of this kind, or None if it has."""
    if unit == "client" and adjacency == "add-remove":
        return (
            'Expected adjacency = "zero-out" (or "replace-one") with unit = "client", got "add-remove": a '
            "client's contribution becomes nothing, while cohort and weights, which are public, stay."
        )
    if unit == "record" and adjacency == "zero-out":
        return 'Expected adjacency = "add-remove" or "replace-one" with unit = "record", got "zero-out".'
    return None


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The cost of opening a release against each party, as events of dp-accounting.

    `others` are the other clients and everybody who sees the broadcast model.
    """

    server: DpEvent
    key_holder: DpEvent
    others: DpEvent

    def by_party(self) -> Mapping[str, DpEvent]:
        return {SERVER: self.server, KEY_HOLDER: self.key_holder, OTHERS: self.others}


@dataclass(frozen=True, order=True)
class ReleaseKey:
    """The name of one release for ever: a second release under it is a replay."""

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
    """A sealed value with its charge.

    Attributes:
        key: who releases what, where in the protocol.
        unit: what one neighbouring data set differs in.
        form: open or sparse (already noised, or unprotected by name), masked or encrypted.
        charge: what opening it costs against each party.
        content: a fingerprint of the protected value, under a secret of its holder. It is empty if a
            repetition needs no check.
    """

    _instead: ClassVar[str] = "hand it to Ledger.send or Ledger.open"

    key: ReleaseKey
    unit: Unit
    form: Form
    charge: Charge
    _numbers: NDArray[np.generic] = field()
    _sealed: bytes = b""
    content: bytes = b""

    # without numbers and bytes: a release that is printed or logged must not be released by it
    def __repr__(self) -> str:
        return f"Release({self.key.holder}, {self.key.name!r}, {self.form}, <sealed>)"

    @staticmethod
    def all_in(body: Any) -> Iterator[Release]:
        """The releases in the fields of a message, those inside tuples too."""
        for own in fields(body):
            value = getattr(body, own.name)
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Release):
                    yield item


@final
@dataclass(frozen=True)
class Delivered:
    """A release as its receiver decodes it: numbers and sealed bytes, no charge, no trust."""

    name: str
    form: Form
    numbers: NDArray[np.generic]
    sealed: bytes


# Whoever makes a Permit must hold this very object. Python hides nothing: it stops slips, not malice.
_LEDGER_ONLY = object()


@final
class Permit:
    """Proof that charges are committed. Only the ledger makes one."""

    __slots__ = ("_keys",)

    def __init__(self, keys: frozenset[ReleaseKey], *, issuer: object) -> None:
        if issuer is not _LEDGER_ONLY:
            raise UnaccountedRelease(
                "Expected the ledger alone to make a Permit, got another caller. Use Ledger.send."
            )
        self._keys = keys

    def contents(self, release: Release) -> tuple[NDArray[np.generic], bytes]:
        """The sealed value. Raises UnaccountedRelease unless its charge is committed."""
        # By key, not once for all: a permit for one release must not open another beside it.
        if release.key not in self._keys:
            raise UnaccountedRelease(
                f"Expected a committed charge, got none for {release!r}. Send it through Ledger.send."
            )
        return release._numbers, release._sealed

    def written(self, release: Release) -> tuple[NDArray[np.generic], bytes]:
        """The sealed value as a message bears it. Raises as `contents`."""
        numbers, sealed = self.contents(release)
        return (numbers[:0], sparse(numbers)) if release.form == "sparse" else (numbers, sealed)
