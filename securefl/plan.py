"""The plan of a run: all that a guarantee hangs on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Final, Literal

from securefl.accounting.store import Terms, require_delta
from securefl.core.cohort import colluding, dropping
from securefl.core.errors import ConfigError
from securefl.core.release import OTHERS, PARTIES, Adjacency, Unit, neighbours_missing

CLEAR: Final = "clear"
"""The word for sums in which the server sees each contribution."""
_NOISES: Final = ("none", "local", "distributed", "central", "key-holder")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a guarantee hangs on. Its digest names the session.

        >>> import securefl
        >>> plan = securefl.Plan(sum="masked", corrupt=0.2, dropout=0.1, delta=1e-5, schedule=10)
        >>> plan.survivors(20), plan.colluding(20), plan.hidden
        (18, 4, True)

    Attributes:
        sum: how sums are summed: "clear", or a way by which the server learns the total alone, such as
            "masked", "ckks" or "two-server" (`sums`).
        scores: how `each` numbers are opened: "clear", or a way by which the server learns the numbers and
            the key holder nothing: "ckks", "batches" or "pads" (`scores`).
        noise: where noise is added to sums that declare a sensitivity. "local": by each client.
            "distributed": in shares, of which those of the honest survivors add up to enough. "central": once
            by the server that sums, which is trusted. "key-holder": once by the key holder of a two-server
            sum, which alone is trusted. Sigma is `noise_multiplier` times the sensitivity. An `each` of
            declared sensitivity is always noised by its client, since nobody sums it.
        dropout, corrupt: for hidden sums and distributed noise, the largest shares of a cohort that fall
            silent (rounded down), and that collude with the server (rounded up). `corrupt` has no default
            there.
        least_cohort: least number of clients that are asked for one sum. Each client of a hidden sum checks
            it.
        least_honest: least number of honest contributors that any combination of opened sums keeps. Each
            client of a hidden sum checks it.
        largest_share: largest share of a sum's weight that one client may have. Each client checks it.
        largest_count: a client that weighs its value by its number of records clips the number to this.
        public_count: the number that a client says in its place if its number of records is data. None if
            that is public.
        secagg: against a server that may lie ("active"), or one that follows the protocol ("semi-honest").
        spare: how many aborted aggregations may be tried again, in the whole run.
        unit, adjacency, delta: the meaning of epsilon.
        unprotected: names of values that may leave without noise. Epsilon is then infinite.
        against: parties that the budget must hold against. The others are trusted by name.
        budget: the largest epsilon of a holder. None is no limit.
        schedule: the declared number of rounds. Nothing is released after it.
        releases: for each name, the most releases of one holder that the noise was calibrated for.
    """

    sum: str = CLEAR
    scores: Literal["clear", "ckks", "batches", "pads"] = "clear"
    noise: Literal["none", "local", "distributed", "central", "key-holder"] = "none"
    noise_multiplier: float = 0.0
    dropout: float = 0.0
    corrupt: float | None = None
    least_cohort: int = 1
    least_honest: int = 1
    largest_share: float = 1.0
    largest_count: int = 2**31
    public_count: int | None = None
    secagg: Literal["active", "semi-honest"] = "active"
    spare: int = 0
    unit: Unit = "record"
    adjacency: Adjacency = "replace-one"
    delta: float
    unprotected: tuple[str, ...] = ()
    against: tuple[str, ...] = PARTIES
    budget: float | None = None
    schedule: int
    releases: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_delta(self.delta)
        if (said := neighbours_missing(self.unit, self.adjacency)) is not None:
            raise ConfigError(said)
        if self.corrupt is None and (self.hidden or self.noise == "distributed"):
            raise ConfigError(
                "Expected `corrupt`, the largest share of a cohort that may collude with the server, got "
                "none, though sums are hidden or noise is shared among clients. State it; 0 says that none "
                "may collude."
            )
        if not (0 <= self.dropout < 1 and 0 <= (self.corrupt or 0.0) <= 1):
            raise ConfigError(
                f"Expected dropout from 0 to below 1 and corrupt from 0 to 1, shares of a cohort, got "
                f"{self.dropout} and {self.corrupt}."
            )
        if self.noise not in _NOISES or not 0 <= self.noise_multiplier < inf:
            raise ConfigError(
                f"Expected noise among {', '.join(_NOISES)} and a finite noise_multiplier >= 0, got "
                f"{self.noise!r} and {self.noise_multiplier}."
            )
        if self.noise == "key-holder" and self.sum != "two-server":
            raise ConfigError(
                'Expected sum = "two-server" with noise = "key-holder", got '
                f"{self.sum!r}: only there does the key holder add what it can put noise on."
            )
        if not (self.least_cohort >= 1 and self.least_honest >= 1 and 0 < self.largest_share <= 1):
            raise ConfigError(
                "Expected least_cohort >= 1, least_honest >= 1 and 0 < largest_share <= 1, "
                f"got {self.least_cohort}, {self.least_honest} and {self.largest_share}."
            )

    @property
    def hidden(self) -> bool:
        """Whether the server learns the totals of sums alone."""
        return self.sum != CLEAR

    def survivors(self, cohort: int) -> int:
        """The least number of contributions in a sum over this many clients. With fewer there is no sum."""
        return cohort - dropping(self.dropout, cohort)

    def colluding(self, cohort: int) -> int:
        """The most clients of a cohort that collude with the server."""
        return colluding(self.corrupt or 0.0, cohort)

    def knowing(self, cohort: int) -> int:
        """The largest number of clients in a cohort whose shares of noise hide nothing.

        A colluding client knows its share. If the promise must hold against other clients, each of them knows
        its own share.
        """
        return max(self.colluding(cohort), 1 if OTHERS in self.against else 0)

    def count(self, records: int) -> int:
        """The number that a client with so many records may let others know, at least 1."""
        return max(1, min(records if self.public_count is None else self.public_count, self.largest_count))

    def terms(self) -> Terms:
        """The terms of a ledger under this plan."""
        return Terms(
            unit=self.unit,
            adjacency=self.adjacency,
            delta=self.delta,
            budget=self.budget,
            against=self.against,
            # Without noise nothing was calibrated, so there is no count to hold the releases to.
            schedule=None if self.noise == "none" or not self.releases else self.releases,
        )

    def session(self, clients: Sequence[str], nonce: bytes) -> bytes:
        """32 bytes that bind every message to the plan, to these clients and to one run (`nonce`)."""
        # The nonce keeps runs of one study apart: a message of one run must not fit into another.
        who = ",".join(clients)
        return hashlib.sha256(b"securefl session v1" + self.digest() + who.encode() + nonce).digest()

    def digest(self) -> bytes:
        """SHA-256 of the canonical plan. Parties that agree on it agree on every charge."""
        # Sorted: the same plan has the same digest, in whatever order its tables were written.
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()
