"""Run-time checks of a mechanism from another distribution against its own declarations.

Its charge cannot be checked at run time. That takes a statistical test of its noise, such as the contract
suite `tests/contracts/test_mechanisms.py`, which every mechanism should pass. These checks refuse

- a declaration of another type or shape: a sum would be wrong, or the ledger could not add it up;
- noise beyond its own headroom: the grid would cut it off, or a total would wrap, without a trace;
- noise that no party draws, or that another party draws than is declared: the sum would have less noise than
  is charged;
- a participation that no ledger enforces.

Each refusal names the mechanism. No refusal depends on a record, since declarations and noise do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, NoReturn

import numpy as np

from securefl.accounting.events import dump_charge
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError, LocalProtocolError, SecureFLError, UnsupportedEvent
from securefl.core.release import KEY_HOLDER, SERVER, Charge
from securefl.dp.correlated import CorrelatedNoise
from securefl.dp.gaussian import LARGEST_NOISE, Integers
from securefl.dp.noise import Source
from securefl.mechanisms.mechanism import Headroom, Kind, Mechanism


def require_kind(word: str, kind: Any) -> Kind:
    """The object of an entry point. Raises ConfigError if a declaration that plans need is missing."""
    legend, mutual = getattr(kind, "legend", None), getattr(kind, "mutual", None)
    if not (isinstance(legend, str) and legend and isinstance(mutual, bool) and callable(kind)):
        _refuse(word, "a class with a `legend` in words and `mutual`, True or False", kind)
    by = getattr(kind, "total_by", "nothing")
    if by not in (None, SERVER, KEY_HOLDER):
        _refuse(word, f"`total_by` as {SERVER!r}, {KEY_HOLDER!r} or None", by)
    found: Kind = kind
    return found


@dataclass(frozen=True)
class Outside:
    """A mechanism of another distribution, wrapped in checks of its declarations."""

    word: str
    kind: Kind
    plan: Plan
    spec: ValueSpec

    @cached_property
    def _own(self) -> Mechanism:
        return self.kind(self.plan, self.spec)

    @property
    def correlation(self) -> CorrelatedNoise:
        return self.plan.correlation(self.spec)

    @property
    def noised(self) -> bool:
        found = self._own.noised
        self._require(found is True, "`noised` as True, since the plan asks for noise on this value", found)
        return True

    @property
    def total_by(self) -> str | None:
        # `require_mechanism` checked the plan against the declaration of the kind.
        found, declared = self._own.total_by, self.kind.total_by
        self._require(found == declared, f"`total_by` as of its kind, {declared!r}", found)
        return found

    def check(self) -> None:
        """Run the mechanism's own check, and every check of its declarations that needs no noise."""
        self._own.check()
        self.headroom()
        self.min_contributions(max(1, self.spec.cohort))
        self.deviation(max(1, self.spec.cohort))
        _ = self.noised, self.total_by, self.learns(SERVER)
        # A ledger enforces the plan's number of releases of a name, and no other limit.
        found, most = self._own.participation, self.plan.max_releases.get(self.spec.name)
        holds = found is None or (_whole(found) and most is not None and most <= found)
        self._require(holds, f"`participation` that a ledger enforces, at least {most} releases", found)

    def charge(self) -> Charge | None:
        found = self._own.charge()
        if found is None:
            return None
        self._require(isinstance(found, Charge), "a Charge or None of `charge`", found)
        try:
            dump_charge(found)
        except (UnsupportedEvent, TypeError, AttributeError):
            self._refuse("a charge of events that a ledger adds up", found)
        return found

    def min_contributions(self, cohort: int) -> int:
        found = self._own.min_contributions(cohort)
        self._require(_whole(found), "a whole number of at least 0 of `min_contributions`", found)
        return found

    def headroom(self) -> Headroom:
        found, limit = self._own.headroom(), self.spec.grid.limit
        if not isinstance(found, Headroom) or not (_whole(found.share or 0) and _whole(found.total)):
            self._refuse("a Headroom of whole numbers", found)
        if found.share is not None and found.share >= limit:
            self._refuse(f"a Headroom with a `share` below the grid's {limit} units", found)
        return found

    def client_noise(self, size: int, source: Source) -> Integers | None:
        found = self._noise(self._own.client_noise(size, source), size, self.headroom().share)
        if found is None and self.total_by is None:
            self._refuse("noise that a client, the server or the key holder draws", None, LocalProtocolError)
        return found

    def total_noise(self, party: str, size: int, source: Source) -> Integers | None:
        # The server adds noise to a float total, which has no modulus.
        most = self.headroom().total if party == KEY_HOLDER else None
        found = self._noise(self._own.total_noise(party, size, source), size, most)
        if (found is None) == (party == self.total_by):
            said = f"noise for totals by {self.total_by or 'no party'}"
            self._refuse(said, f"other at the {party}", LocalProtocolError)
        return found

    def deviation(self, contributions: int) -> float:
        found = self._own.deviation(contributions)
        holds = isinstance(found, float | int) and isfinite(found) and found >= 0
        self._require(holds, "a finite `deviation` of at least 0", found)
        return float(found)

    def learns(self, party: str) -> str:
        found = self._own.learns(party)
        self._require(isinstance(found, str), "words of `learns`", found)
        return found

    def _noise(self, found: Any, size: int, most: int | None) -> Integers | None:
        """Raises LocalProtocolError unless noise is a vector of integers within its headroom."""
        if found is None:
            return None
        if not isinstance(found, np.ndarray) or (found.dtype, found.shape) != (np.int64, (size,)):
            # Its type alone: noise that a log shows protects nothing.
            came = f"{np.asarray(found).dtype} of shape {np.shape(found)}"
            self._refuse(f"int64 noise of shape {(size,)}", came, LocalProtocolError)
        most = int(LARGEST_NOISE) if most is None else most
        # Two comparisons: the magnitude of the least int64 is no int64.
        if size and not (-most <= found.min() and found.max() <= most):
            came = "more: a part of it would be cut off"
            self._refuse(f"noise within its own headroom of {most} grid units", came, LocalProtocolError)
        drawn: Integers = found
        return drawn

    def _require(self, holds: bool, expected: str, got: Any) -> None:
        if not holds:
            self._refuse(expected, got)

    def _refuse(self, expected: str, got: Any, error: type[SecureFLError] = ConfigError) -> NoReturn:
        _refuse(self.word, expected, got, f" for {self.spec.name!r}", error)


def _whole(number: Any) -> bool:
    return type(number) is int and number >= 0


def _refuse(
    word: str, expected: str, got: Any, where: str = "", error: type[SecureFLError] = ConfigError
) -> NoReturn:
    raise error(
        f"Expected {expected} from the mechanism {word!r}{where}, got {got!r:.80}. Nothing is released with "
        "it: take another `noise`, or report this to its authors."
    )
