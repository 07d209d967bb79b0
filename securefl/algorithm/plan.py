"""The plan of a run: all that a guarantee hangs on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from typing import Any, Final, Literal, get_args

from securefl.accounting.store import Terms, require_delta
from securefl.core.cohort import colluding, dropping, exact, guess_error, share_within
from securefl.core.errors import ConfigError
from securefl.core.release import OTHERS, PARTIES, Adjacency, Unit, neighbours_missing
from securefl.core.renamed import formerly, new_name

CLEAR: Final = "clear"
"""The word for sums in which the server sees each contribution."""
NO_NOISE: Final = "none"
"""The word for no noise. Every other word is that of a mechanism (`mechanisms`)."""
Weighing = Literal["equal", "draws", "counts"]
"""How the values of a sum weigh against each other."""
_EXAMPLES: Final = {
    "min_cohort_size": "10",
    "max_cohort_size": "10",
    "min_honest": "5",
    "max_client_weight": "0.5",
}
_SIZES: Final = (
    "min_cohort_size",
    "max_cohort_size",
    "min_honest",
    "min_records",
    "max_records",
    "fixed_batch",
)
_MOST_DRAWS: Final = 2**20
"""More draws than any selection makes. Beyond it a weight of one draw could vanish on a grid."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a guarantee hangs on. Its digest names the session.

        >>> import securefl
        >>> plan = securefl.Plan(
        ...     sum="masked", corrupt=0.2, dropout=0.1, delta=1e-5, max_rounds=10,
        ...     min_cohort_size=20, max_cohort_size=20, min_honest=10, max_client_weight=0.1,
        ... )
        >>> plan.survivors(20), plan.colluding(20), plan.beside(20), plan.hidden
        (18, 4, 13, True)
        >>> round(plan.guess_error(), 2)  # of one client's value, in spreads, from any sum that may be opened
        0.96

    Attributes:
        sum: how sums are summed: "clear", or a way by which the server learns the total alone, such as
            "masked", "ckks" or "two-server" (`sums`).
        scores: how `each` numbers are opened: "clear", or a way by which the server learns the numbers and
            the key holder nothing: "ckks", "batches" or "pads" (`scores`).
        noise: the mechanism that noises sums which declare a sensitivity (`mechanisms`). "local": by each
            client. "distributed": in shares, of which those of the honest survivors add up to enough.
            "central": once by the server that sums, which is trusted. "key-holder": once by the key holder of
            a two-server sum, which alone is trusted. Sigma is `noise_multiplier` times the sensitivity. An
            `each` of declared sensitivity is always noised by its client, since nobody sums it. What a
            mechanism needs of a plan is checked by `mechanisms.require_mechanism`, before a ledger opens.
        dropout, corrupt: for hidden sums and distributed noise, the largest shares of a cohort that fall
            silent (rounded down), and that collude with the server (rounded up). `corrupt` has no default
            there.
        min_cohort_size, max_cohort_size: the sizes that the cohort of one sum may have. Each client of a
            hidden sum checks them. These and the next two have no default there.
        min_honest: least number of honest contributors that any combination of opened sums keeps. Each
            client of a hidden sum checks it.
        max_client_weight: the largest squared share that one client may have of a hidden sum, beside what
            surely remains with it (`beside`). A linear guess of one client's value from the sum then errs by
            at least sqrt(1 - max_client_weight) of its spread. Below 1; 0.5 or less is advised. Each client
            checks it.
        weights: by name of a sum, how its values weigh: "draws", as often as a client was drawn, which
            everybody may know; "counts", by the client's own number of records. A name that is absent weighs
            "equal", and an order that weighs it is refused.
        draws: how many draws of clients there are in one sum that weighs by draws, and the most clients of
            one that weighs by counts. An order may have fewer only if it names each client once, such as if
            too few clients are left.
        min_num_examples, max_num_examples: a client that weighs its value by its number of records clips the
            number to these.
        min_records, max_records: bounds of n where values weigh n_k / n. A client takes one n in a
            session, the first it is told. Equal bounds pin n. Both have no default there.
        fixed_batch: clients are in fixed batches of so many, by number: 0 to fixed_batch - 1, and so on. A
            cohort of a hidden sum consists of whole batches, and its sum opens over all of it (`dropout` 0).
            So whatever sums of several rounds are taken off each other, batches come or go as a whole (So et
            al. 2021). None is no such rule. Each client of a hidden sum checks it.
        public_num_examples: the number that a client says in its place if its number of records is data. None
            if that is public.
        secagg: against a server that may lie ("active"), or one that follows the protocol ("semi-honest").
        max_retries: how many aborted aggregations may be tried again, in the whole run.
        unit, adjacency, delta: the meaning of epsilon.
        non_private: names of values that may leave without noise. Epsilon is then infinite.
        adversaries: parties that the budget must hold against. The others are trusted by name.
        budget: the largest epsilon of a holder. None is no limit.
        max_rounds: the declared number of rounds. Nothing is released after it.
        max_releases: for each name, the most releases of one holder that the noise was calibrated for.
    """

    sum: str = CLEAR
    scores: Literal["clear", "ckks", "batches", "pads"] = "clear"
    noise: str = NO_NOISE
    noise_multiplier: float = 0.0
    dropout: float = 0.0
    corrupt: float | None = None
    min_cohort_size: int | None = field(default=None, metadata=formerly("least_cohort"))
    max_cohort_size: int | None = field(default=None, metadata=formerly("largest_cohort"))
    min_honest: int | None = field(default=None, metadata=formerly("least_honest"))
    max_client_weight: float | None = field(default=None, metadata=formerly("largest_share"))
    weights: Mapping[str, Weighing] = field(default_factory=dict)
    draws: int | None = None
    min_num_examples: int = field(default=1, metadata=formerly("least_count"))
    max_num_examples: int = field(default=2**31, metadata=formerly("largest_count"))
    min_records: int | None = field(default=None, metadata=formerly("least_records"))
    max_records: int | None = field(default=None, metadata=formerly("largest_records"))
    fixed_batch: int | None = None
    public_num_examples: int | None = field(default=None, metadata=formerly("public_count"))
    secagg: Literal["active", "semi-honest"] = "active"
    max_retries: int = field(default=0, metadata=formerly("spare"))
    unit: Unit = "record"
    adjacency: Adjacency = "replace-one"
    delta: float
    non_private: tuple[str, ...] = field(default=(), metadata=formerly("unprotected"))
    adversaries: tuple[str, ...] = field(default=PARTIES, metadata=formerly("against"))
    budget: float | None = None
    max_rounds: int = field(metadata=formerly("schedule"))
    max_releases: Mapping[str, int] = field(default_factory=dict, metadata=formerly("releases"))

    def __new__(cls, **words: Any) -> Plan:
        # Before the dataclass's own `__init__`, which would say no more than that the word is unexpected.
        for word in words:
            if (said := new_name(cls, word)) is not None:
                raise ConfigError(said)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        require_delta(self.delta)
        if (said := neighbours_missing(self.unit, self.adjacency)) is not None:
            raise ConfigError(said)
        if self.corrupt is None and self.hidden:
            raise ConfigError(
                "Expected `corrupt`, the largest share of a cohort that may collude with the server, got "
                "none, though sums are hidden. State it; 0 says that none may collude."
            )
        if not (0 <= self.dropout < 1 and 0 <= (self.corrupt or 0.0) <= 1):
            raise ConfigError(
                f"Expected dropout from 0 to below 1 and corrupt from 0 to 1, shares of a cohort, got "
                f"{self.dropout} and {self.corrupt}."
            )
        if not isinstance(self.noise, str) or not 0 <= self.noise_multiplier < inf:
            raise ConfigError(
                f"Expected noise as a word and a finite noise_multiplier >= 0, got {self.noise!r} and "
                f"{self.noise_multiplier}."
            )
        self._check_weights()
        if self.hidden:
            self._check_hidden()

    def _check_weights(self) -> None:
        """Refuse words that can have no meaning, whether sums are hidden or not."""
        kinds = get_args(Weighing)
        if not isinstance(self.weights, Mapping) or any(
            not isinstance(name, str) or how not in kinds for name, how in self.weights.items()
        ):
            raise ConfigError(
                f'Expected weights such as {{"update": "draws"}}, with "equal", "draws" or "counts", got '
                f"{self.weights!r}."
            )
        for word in (*_SIZES, "draws", "min_num_examples", "max_num_examples"):
            value, most = getattr(self, word), _MOST_DRAWS if word == "draws" else 2**31
            # Whole numbers of Python itself: others would write another digest of an equal plan.
            if value is not None and not (type(value) is int and 1 <= value <= most):
                raise ConfigError(f"Expected {word} as a whole number from 1 to {most}, got {value!r}.")
        ordered = {
            "min_cohort_size <= max_cohort_size": (self.min_cohort_size or 1, self.max_cohort_size or 2**31),
            "min_num_examples <= max_num_examples": (self.min_num_examples, self.max_num_examples),
            "min_records <= max_records": (self.min_records or 1, self.max_records or 2**31),
        }
        for words, (least, largest) in ordered.items():
            if not 1 <= least <= largest <= 2**31:
                raise ConfigError(f"Expected 1 <= {words} <= 2^31, got {least} and {largest}.")
        share = self.max_client_weight
        if share is not None and not (isinstance(share, float | int) and 0 < share < 1):
            raise ConfigError(
                f"Expected 0 < max_client_weight < 1, got {share!r}: with 1 a sum may tell one "
                "client's value, with 0 none opens. Take 0.5 or less."
            )

    def _check_hidden(self) -> None:
        """Refuse defaults, and cohorts in which one client's value would stand out."""
        words = ("min_cohort_size", "max_cohort_size", "min_honest", "max_client_weight")
        if missing := [word for word in words if getattr(self, word) is None]:
            raise ConfigError(
                f"Expected {', '.join(f'`{word}`' for word in missing)} where sums are hidden, got none: "
                "there each client leans on the others, and checks orders against these. For cohorts of 10 "
                f"add {', '.join(f'{word}={_EXAMPLES[word]}' for word in missing)}."
            )
        if self.dropout + (self.corrupt or 0.0) >= 1:
            raise ConfigError(
                f"Expected dropout and corrupt below 1 together where sums are hidden, got {self.dropout} "
                f"and {self.corrupt}: nobody would be left to hide behind."
            )
        kinds = set(self.weights.values())
        if "draws" in kinds and self.draws is None:
            raise ConfigError(
                "Expected `draws`, the number of draws in a cohort, where hidden sums weigh by draws, got "
                "none. Add draws=K for K drawn clients a round."
            )
        if self.draws is not None and self.draws < self.min_cohort_size and kinds - {"equal"}:  # type: ignore[operator]
            raise ConfigError(
                f"Expected at least as many draws as clients in the least cohort, got {self.draws} draws and "
                f"min_cohort_size = {self.min_cohort_size}: no order would be taken. Draw more clients a "
                "round, or lower min_cohort_size."
            )
        if self.min_cohort_size < 2:  # type: ignore[operator]  # None was refused above
            raise ConfigError(
                f"Expected min_cohort_size >= 2 where sums are hidden, got {self.min_cohort_size}: the sum "
                "of one client is its value."
            )
        size, beside = self._thinnest()
        if beside + 1 < self.min_honest:  # type: ignore[operator]
            raise ConfigError(
                f"Expected at least {self.min_honest} honest contributors in every sum (`min_honest`), "
                f"got {max(0, beside + 1)} in a cohort of {size}: {self.survivors(size)} clients are enough, "
                f"and {self.colluding(size)} of them may collude. Raise min_cohort_size, or lower dropout, "
                "corrupt or min_honest."
            )
        if self.fixed_batch is not None:
            self._check_batch(self.fixed_batch)
        if self.public_num_examples is None and "counts" in kinds and self.max_num_examples == 2**31:
            raise ConfigError(
                "Expected `min_num_examples` and `max_num_examples`, public bounds of a client's number of "
                "records, where hidden sums weigh by counts, got none. Add min_num_examples = ... and "
                "max_num_examples = ..., "
                'or weigh equally (in a study: aggregation = "partial").'
            )
        least, largest = self.counts if "counts" in kinds else (1, 1)
        if (share := share_within(least, largest, beside)) > exact(self.max_client_weight):  # type: ignore[arg-type]
            narrower = "" if least == largest else "Take narrower bounds of the counts, or equal weights, or "
            raise ConfigError(
                "Expected one client's squared share of a hidden sum to be at most "
                f"{self.max_client_weight:g} "
                f"(`max_client_weight`), got up to {float(share):.3g} in a cohort of {size}, in which "
                f"{max(0, beside)} honest others surely remain beside a client"
                + (f" and counts from {least} to {largest} weigh" if least != largest else "")
                + f". {narrower or 'Take '}a larger min_cohort_size, or lower dropout or corrupt."
            )

    def _check_batch(self, batch: int) -> None:
        assert self.min_cohort_size is not None
        assert self.max_cohort_size is not None
        assert self.min_honest is not None
        if self.dropout:
            raise ConfigError(
                f"Expected dropout = 0 with fixed_batch, got {self.dropout}: a sum without one client would "
                "cut through its batch. Lose such a round, or leave fixed_batch out."
            )
        if self.min_cohort_size % batch or self.max_cohort_size % batch:
            raise ConfigError(
                f"Expected cohorts of whole batches, got {self.min_cohort_size} to {self.max_cohort_size} "
                f"clients in batches of {batch}. Take multiples of it."
            )
        honest = batch - self.colluding(self.max_cohort_size)
        if honest < self.min_honest:
            raise ConfigError(
                f"Expected at least {self.min_honest} honest clients in each batch (`min_honest`), got "
                f"{max(0, honest)} of {batch}, since {self.colluding(self.max_cohort_size)} of a cohort may "
                "collude. Take larger batches."
            )
        if (share := self._batch_share) > exact(self.max_client_weight or 1):
            raise ConfigError(
                f"Expected one client's squared share of its batch to be at most {self.max_client_weight:g} "
                f"(`max_client_weight`), got up to {float(share):.3g} in batches of {batch}, which "
                "differences of rounds tell. Take larger batches."
            )

    @property
    def _batch_share(self) -> Fraction:
        """The largest squared share of one client in what remains of a batch without those that collude."""
        assert self.fixed_batch is not None
        assert self.max_cohort_size is not None
        least, largest = self.counts if "counts" in self.weights.values() else (1, 1)
        return share_within(least, largest, self.fixed_batch - 1 - self.colluding(self.max_cohort_size))

    @property
    def counts(self) -> tuple[int, int]:
        """The least and the largest count that a client may weigh with."""
        if self.public_num_examples is None:
            return self.min_num_examples, self.max_num_examples
        return self.count(1), self.count(1)

    def _thinnest(self) -> tuple[int, int]:
        """The cohort size in which fewest surely remain beside a client, and how many these are."""
        assert self.min_cohort_size is not None
        assert self.max_cohort_size is not None
        found = (self.min_cohort_size, self.beside(self.min_cohort_size))
        for size in range(self.min_cohort_size + 1, self.max_cohort_size + 1):
            # Each of the two shares is rounded by less than one client.
            if size * (1 - self.dropout - (self.corrupt or 0.0)) - 3 > found[1]:
                break
            if self.beside(size) < found[1]:
                found = (size, self.beside(size))
        return found

    @property
    def hidden(self) -> bool:
        """Whether the server learns the totals of sums alone."""
        return self.sum != CLEAR

    @property
    def noisy(self) -> bool:
        """Whether a mechanism noises values that declare a sensitivity."""
        return self.noise != NO_NOISE

    def survivors(self, cohort: int) -> int:
        """The least number of contributions in a sum over this many clients. With fewer there is no sum."""
        return cohort - dropping(self.dropout, cohort)

    def colluding(self, cohort: int) -> int:
        """The most clients of a cohort that collude with the server."""
        return colluding(self.corrupt or 0.0, cohort)

    def beside(self, cohort: int) -> int:
        """How many honest others surely remain beside one client in a sum over this many: T - 1 - c.

        T is the least number of contributions that opens, c the most that collude.
        """
        return self.survivors(cohort) - 1 - self.colluding(cohort)

    def guess_error(self, name: str | None = None) -> float:
        """The least error of a linear guess of one client's value from one hidden sum of this name.

        In spreads of the value, for values that spread alike and have nothing to do with each other. Sums
        over records of clients with unlike data do not, and neither do values near a step of the grid. Orders
        that let a guess be better are refused by each client. With fixed batches it holds of differences of
        rounds too. Without a name it is that of the sum that tells most. Raises ConfigError if sums are not
        hidden.
        """
        if not self.hidden or self.max_client_weight is None:
            raise ConfigError("Expected a plan that hides sums, got one of sums in the clear.")
        kinds = {"equal", *self.weights.values()} if name is None else {self.weights.get(name, "equal")}
        beside = self._thinnest()[1]
        shares = [share_within(1, 1, beside)]
        if "draws" in kinds:  # the server draws, up to what clients let through
            shares.append(exact(self.max_client_weight))
        if "counts" in kinds:
            shares.append(share_within(*self.counts, beside))
        if self.fixed_batch is not None:
            shares.append(self._batch_share)
        return guess_error(max(shares))

    def knowing(self, cohort: int) -> int:
        """The largest number of clients in a cohort whose shares of noise hide nothing.

        A colluding client knows its share. If the promise must hold against other clients, each of them knows
        its own share.
        """
        return max(self.colluding(cohort), 1 if OTHERS in self.adversaries else 0)

    def count(self, records: int) -> int:
        """The number that a client with so many records may let others know, within the bounds."""
        told = records if self.public_num_examples is None else self.public_num_examples
        return min(max(told, self.min_num_examples), self.max_num_examples)

    def terms(self) -> Terms:
        """The terms of a ledger under this plan."""
        return Terms(
            unit=self.unit,
            adjacency=self.adjacency,
            delta=self.delta,
            budget=self.budget,
            adversaries=self.adversaries,
            # Without noise nothing was calibrated, so there is no count to hold the releases to.
            max_releases=None if not self.noisy or not self.max_releases else self.max_releases,
        )

    def session(self, clients: Sequence[str], nonce: bytes) -> bytes:
        """32 bytes that bind every message to the plan, to these clients and to one run (`nonce`)."""
        # The nonce keeps runs of one study apart: a message of one run must not fit into another.
        who = ",".join(clients)
        return hashlib.sha256(b"securefl session v1" + self.digest() + who.encode() + nonce).digest()

    def digest(self) -> bytes:
        """SHA-256 of the canonical plan. Parties that agree on it agree on every charge."""
        return hashlib.sha256(self.text().encode()).digest()

    def text(self) -> str:
        """The plan as canonical JSON: equal plans have equal texts."""
        # Sorted: the same plan has the same text, in whatever order its tables were written.
        return json.dumps(self.words(), sort_keys=True)

    def words(self) -> dict[str, Any]:
        """Every field by its word in digests and files. A field may get another name; its word stays."""
        return {
            "sum": self.sum,
            "scores": self.scores,
            "noise": self.noise,
            "noise_multiplier": self.noise_multiplier,
            "dropout": self.dropout,
            "corrupt": self.corrupt,
            "least_cohort": self.min_cohort_size,
            "largest_cohort": self.max_cohort_size,
            "least_honest": self.min_honest,
            "largest_share": self.max_client_weight,
            "weights": dict(self.weights),
            "draws": self.draws,
            "least_count": self.min_num_examples,
            "largest_count": self.max_num_examples,
            "least_records": self.min_records,
            "largest_records": self.max_records,
            "fixed_batch": self.fixed_batch,
            "public_count": self.public_num_examples,
            "secagg": self.secagg,
            "spare": self.max_retries,
            "unit": self.unit,
            "adjacency": self.adjacency,
            "delta": self.delta,
            "unprotected": self.non_private,
            "against": self.adversaries,
            "budget": self.budget,
            "schedule": self.max_rounds,
            "releases": dict(self.max_releases),
        }
