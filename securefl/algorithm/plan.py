"""The plan of a run: every parameter that a privacy guarantee depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, inf
from typing import Any, Final, Literal

from securefl.accounting.store import Terms, require_delta
from securefl.algorithm.queries import ValueSpec, Weighing
from securefl.core.arguments import checked
from securefl.core.cohort import colluding, dropping, exact, guess_error, share_within
from securefl.core.errors import ConfigError
from securefl.core.formats import prefix
from securefl.core.ranges import Range
from securefl.core.release import OTHERS, PARTIES, Adjacency, Unit, neighbours_missing
from securefl.dp.correlated import CorrelatedNoise

CLEAR: Final = "clear"
"""The value of `sum` if the server sees each contribution."""
NO_NOISE: Final = "none"
"""The value of `noise` if no noise is added. Every other value names a mechanism (`mechanisms`)."""
RATES: Final = Range(
    "[0.001, 1]",
    "Take 0.01, or another one from 0.001 on: more rarely, a client trains in none of a thousand rounds.",
)
"""The chances with which a client may draw itself into a sum (`Plan.sampling_rate`)."""
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
"""More draws than any selection makes. With more, the weight of one draw could round to 0 on a grid."""


@checked
@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every parameter that a privacy guarantee depends on. Its digest names the session.

        >>> import securefl
        >>> plan = securefl.Plan(
        ...     sum="masked", corrupt=0.2, dropout=0.1, delta=1e-5, max_rounds=10,
        ...     min_cohort_size=20, max_cohort_size=20, min_honest=10, max_client_weight=0.1,
        ... )
        >>> plan.survivors(20), plan.colluding(20), plan.beside(20), plan.hidden
        (18, 4, 12, True)
        >>> round(plan.guess_error(), 2)  # least RMS error of a linear guess, in standard deviations
        0.96

    Attributes:
        sum: "clear", or the scheme by which the server learns totals only, such as "masked", "ckks" or
            "two-server" (`sums`).
        scores: how the server obtains one number per client (`CohortQuery.per_client`): "clear", or the
            scheme by which it learns only these numbers, and the key holder none of them: "ckks" or
            "pads" (`linear`).
        noise: the mechanism that noises values with a sensitivity (`mechanisms`). "local": each client noises
            its value. "distributed": each client adds a share, and the honest survivors' shares add up to
            enough. "central": the summing server adds noise once and is trusted. "key-holder": the key holder
            of a two-server sum adds noise once, and only it is trusted. Sigma is `noise_multiplier` times the
            sensitivity. Under every mechanism a client itself noises a per-client number that has a
            sensitivity, since no party sums such numbers. `mechanisms.require_mechanism` checks a mechanism's
            needs before a ledger opens.
        separation: the least number of rounds between two contributions of a client to one sum that each
            round queries once (`ValueSpec.each_round`). The client's ledger refuses an earlier one.
        coefficients: of the noise on those of these sums that a model adds up (`ValueSpec.accumulates`). It
            is correlated over rounds if there are several (`dp.CorrelatedNoise`). No more than `separation`,
            or 1 and the weights of buffers. Sigma is then `noise_multiplier` times the sensitivity times
            `CorrelatedNoise.column_norm`.
        decays: of the buffers. None if `coefficients` are those of bands.
        sampling_rate: the chance q with which a query takes a client's own value. Each client draws anew for
            each release, by its own secret. Zeros stand for the value otherwise. In `RATES`, and above delta.
            Below 1, noise is central.
        dropout, corrupt: for hidden sums and distributed noise, the largest share of a cohort that falls
            silent (rounded down), and that colludes with the server (rounded up). `corrupt` has no default
            there.
        min_cohort_size, max_cohort_size: the least and the largest cohort of one sum. Each client of a hidden
            sum checks them. With hidden sums these two, `min_honest` and `max_client_weight` must be given.
        min_honest: the least number of honest contributors in any combination of opened sums. Each client
            of a hidden sum checks it.
        max_client_weight: the largest w_k^2 / (w_k^2 + sum of w_j^2), where k is any client and j runs over
            the honest others that surely remain in the sum and do not observe it (`beside`). The RMS error of
            a linear guess of one client's value from the sum, by the server or by another client, is then at
            least sqrt(1 - max_client_weight) of the value's standard deviation. Below 1; 0.5 or less is
            advised. Each client checks it.
        weights: by name of a sum, how its values are weighted: "draws", by how often the client was drawn,
            which is public; "counts", by the client's number of records. A name that is absent is weighted
            "equal", and a client refuses an order that weights it otherwise.
        draws: the number of draws of clients in one sum weighted by draws, and the most clients in one
            weighted by counts. An order may have fewer only if it names each client once, for example if too
            few clients are left.
        min_num_examples, max_num_examples: a client that weights its value by its number of records clips
            that number to this range.
        min_records, max_records: the range of n in weights n_k / n. A client accepts one n in a
            session, the first that it receives. Equal bounds fix n in advance. Neither has a default if a
            hidden sum is weighted by n_k / n.
        fixed_batch: clients form fixed batches of this size by number: 0 to fixed_batch - 1, and so on. A
            cohort of a hidden sum consists of whole batches, and its sum opens with every member (`dropout`
            0). Any difference of sums of several rounds then adds or removes whole batches (So et al. 2021).
            Each client of a hidden sum checks it. None: no such rule.
        public_num_examples: the number that a client states in place of its number of records, if the latter
            is private. None if it is public.
        secagg: "active" if the server may lie, "semi-honest" if it follows the protocol.
        accepts_kept_state: whether the owner accepts that the server may open single inputs of hidden sums
            without noise that read state of earlier queries (`mechanisms.agreed`).
        max_retries: the most retries of aborted aggregations in the whole run.
        unit, adjacency, delta: the meaning of epsilon.
        non_private: names of values that may leave without noise. Epsilon is then infinite.
        adversaries: the parties that the budget must hold against. The plan trusts every party not named
            here.
        budget: the largest epsilon of a holder. None: no limit.
        max_rounds: the declared number of rounds. The ledger releases nothing after it.
        max_releases: by value name, the number of releases per client for which the noise was calibrated.
            The client's ledger refuses more noised releases.

    Raises:
        ConfigError: a parameter is of another type or out of range, or hidden sums lack a bound that each
            client checks, or would let one client's value stand out.
    """

    sum: str = CLEAR
    scores: Literal["clear", "ckks", "pads"] = "clear"
    noise: str = NO_NOISE
    noise_multiplier: float = 0.0
    separation: int = 1
    coefficients: tuple[float, ...] | Any = (1.0,)  # any numbers: `CorrelatedNoise` makes them floats
    decays: tuple[float, ...] = ()
    sampling_rate: float = 1.0
    dropout: float = 0.0
    corrupt: float | None = None
    min_cohort_size: int | None = None
    max_cohort_size: int | None = None
    min_honest: int | None = None
    max_client_weight: float | None = None
    weights: Mapping[str, Weighing] = field(default_factory=dict)
    draws: int | None = None
    min_num_examples: int = 1
    max_num_examples: int = 2**31
    min_records: int | None = None
    max_records: int | None = None
    fixed_batch: int | None = None
    public_num_examples: int | None = None
    secagg: Literal["active", "semi-honest"] = "active"
    accepts_kept_state: bool = False
    max_retries: int = 0
    unit: Unit = "record"
    adjacency: Adjacency = "replace-one"
    delta: float
    non_private: tuple[str, ...] = ()
    adversaries: tuple[str, ...] = PARTIES
    budget: float | None = None
    max_rounds: int
    max_releases: Mapping[str, int] = field(default_factory=dict)

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
        if not 0 <= self.noise_multiplier < inf:
            raise ConfigError(f"Expected a finite noise_multiplier >= 0, got {self.noise_multiplier}.")
        if self.sampling_rate not in RATES:
            raise ConfigError(
                f"Expected sampling_rate in {RATES}, got {self.sampling_rate!r}. {RATES.remedy}"
            )
        if self.sampling_rate <= self.delta:
            raise ConfigError(
                f"Expected a `sampling_rate` above delta = {self.delta:g}, got {self.sampling_rate:g}: "
                "values that are sent so rarely meet that delta without noise. Set a higher rate, or a "
                "lower delta."
            )
        noise = CorrelatedNoise(self.coefficients, self.separation, 1, self.decays)
        object.__setattr__(self, "coefficients", noise.coefficients)
        object.__setattr__(self, "decays", noise.decays)
        self._check_weights()
        if self.hidden:
            self._check_hidden()

    def _check_weights(self) -> None:
        """Refuse values without a meaning, whether sums are hidden or not."""
        words = (*_SIZES, "draws", "min_num_examples", "max_num_examples", "max_rounds", "max_retries")
        for word in words:
            value, most = getattr(self, word), _MOST_DRAWS if word == "draws" else 2**31
            least = 0 if word == "max_retries" else 1
            # Only Python's own int: another type would change the digest of an equal plan.
            if value is not None and not (type(value) is int and least <= value <= most):
                raise ConfigError(f"Expected {word} as a whole number from {least} to {most}, got {value!r}.")
        ordered = {
            "min_cohort_size <= max_cohort_size": (self.min_cohort_size or 1, self.max_cohort_size or 2**31),
            "min_num_examples <= max_num_examples": (self.min_num_examples, self.max_num_examples),
            "min_records <= max_records": (self.min_records or 1, self.max_records or 2**31),
        }
        for order, (least, largest) in ordered.items():
            if not 1 <= least <= largest <= 2**31:
                raise ConfigError(f"Expected 1 <= {order} <= 2^31, got {least} and {largest}.")
        share = self.max_client_weight
        if share is not None and not 0 < share < 1:
            raise ConfigError(
                f"Expected 0 < max_client_weight < 1, got {share!r}: with 1 a sum may reveal one "
                "client's value, with 0 no sum opens. Take 0.5 or less."
            )

    def _check_hidden(self) -> None:
        """Refuse missing bounds of hidden sums, and cohorts in which one client's value would stand out."""
        if missing := [word for word in _EXAMPLES if getattr(self, word) is None]:
            raise ConfigError(
                f"Expected {', '.join(f'`{word}`' for word in missing)} if sums are hidden, got none: "
                "each client depends on the others and checks orders against these. For cohorts of 10 "
                f"add {', '.join(f'{word}={_EXAMPLES[word]}' for word in missing)}."
            )
        if self.dropout + (self.corrupt or 0.0) >= 1:
            raise ConfigError(
                f"Expected dropout + corrupt < 1 if sums are hidden, got {self.dropout} "
                f"and {self.corrupt}: no honest client would be left in the sum."
            )
        kinds = set(self.weights.values())
        if "draws" in kinds and self.draws is None:
            raise ConfigError(
                "Expected `draws`, the number of draws in a cohort, if hidden sums weigh by draws, got "
                "none. Add draws=K if K clients are drawn in a round."
            )
        if self.draws is not None and self.draws < self.min_cohort_size and kinds - {"equal"}:  # type: ignore[operator]
            raise ConfigError(
                f"Expected at least as many draws as clients in the least cohort, got {self.draws} draws and "
                f"min_cohort_size = {self.min_cohort_size}: clients would refuse every order. Draw more "
                "clients a round, or lower min_cohort_size."
            )
        if self.min_cohort_size < 2:  # type: ignore[operator]  # None was refused above
            raise ConfigError(
                f"Expected min_cohort_size >= 2 if sums are hidden, got {self.min_cohort_size}: the sum of "
                "one client is that client's value."
            )
        if self.public_num_examples is None and "counts" in kinds and self.max_num_examples == 2**31:
            raise ConfigError(
                "Expected `min_num_examples` and `max_num_examples`, public bounds of a client's number of "
                "records, if hidden sums weigh by counts, got none. Add min_num_examples = ... and "
                'max_num_examples = ..., or weigh equally (in a study: aggregation = "partial").'
            )
        # In one round it depends on the value whether its total is told: `weighing` holds orders to that.
        told = self.max_rounds > 1
        if self.fixed_batch is not None:
            self._check_batch(self.fixed_batch, told)
        size = self._thinnest()
        self.require_hiding(size, self.beside(size, told=told))

    def require_hiding(
        self, size: int, beside: int, share: Fraction | None = None, batch: int | None = None
    ) -> None:
        """Refuse a sum with too few honest contributors, or one in which a client's value would stand out.

        Args:
            size: of the cohort.
            beside: the honest others that surely hide a client (`beside`).
            share: the largest squared share of one client beside them. By default that of the plan's bounds.
            batch: the size of a fixed batch, for the sums over one batch that differences of rounds reveal.

        Raises:
            ConfigError: `min_honest` or `max_client_weight` do not allow the sum.
        """
        least, largest = self._weights
        share = share_within(least, largest, beside) if share is None else share
        honest = (self.survivors(size) if batch is None else batch) - self.colluding(size)
        where = f"a cohort of {size}" if batch is None else f"batches of {batch}"
        remedy = "larger cohorts (min_cohort_size), or lower dropout or corrupt"
        if batch is not None:  # more clients of a cohort would be more that collude in one batch
            remedy = "larger batches (fixed_batch), or a lower corrupt"
        if honest < (self.min_honest or 1):
            raise ConfigError(
                f"Expected at least {self.min_honest} honest contributors in every sum (`min_honest`), got "
                f"{max(0, honest)} in {where}, since {self.colluding(size)} of a cohort may collude. Take "
                f"{remedy}, or a lower min_honest."
            )
        if share > exact(self.max_client_weight or 1):
            narrower = "narrower bounds of the counts, or equal weights, or " if least < largest else ""
            raise ConfigError(
                f"Expected no client to have more than {self.max_client_weight:g} of the squared weight "
                f"(`max_client_weight`), got up to {float(share):.3g} in {where}, in which {max(0, beside)} "
                "honest others surely remain with a client"
                + (f" and counts from {least} to {largest} weigh" if narrower else "")
                + f": the sum would reveal its value. Take {narrower}{remedy}."
            )

    def _check_batch(self, batch: int, told: bool) -> None:
        if self.dropout:
            raise ConfigError(
                f"Expected dropout = 0 with fixed_batch, got {self.dropout}: a sum without one client would "
                "split its batch. Set dropout = 0 (such a round then aborts), or leave fixed_batch out."
            )
        least, most = self.cohort_sizes
        if least % batch or most % batch:
            raise ConfigError(
                f"Expected cohorts of whole batches, got {least} to {most} clients in batches of {batch}. "
                "Take multiples of it."
            )
        self.require_hiding(most, self._batch_beside(batch, told), batch=batch)

    def _batch_beside(self, batch: int, told: bool) -> int:
        """The number of honest others of a batch who surely hide a client in the sum over it."""
        _, most = self.cohort_sizes
        # All others of a cohort may be in two sums.
        return self.beside(most, told=told) - (most - batch)

    @property
    def _weights(self) -> tuple[int, int]:
        """The least and the largest weight of a client in a hidden sum, up to a factor."""
        return self.counts if "counts" in self.weights.values() else (1, 1)

    @property
    def counts(self) -> tuple[int, int]:
        """The least and the largest number of records that a client's weight may state."""
        if self.public_num_examples is None:
            return self.min_num_examples, self.max_num_examples
        return self.count(1), self.count(1)

    @property
    def cohort_sizes(self) -> tuple[int, int]:
        """The least and the largest cohort of one sum: 1 and 2^31 if the plan says nothing."""
        return self.min_cohort_size or 1, self.max_cohort_size or 2**31

    def _thinnest(self) -> int:
        """The cohort size that leaves fewest honest others beside a client."""
        least, most = self.cohort_sizes
        # Rounding changes each of the two shares by less than one client, so a larger cohort leaves more.
        end = ceil((self.beside(least) + 4) / (1 - self.dropout - (self.corrupt or 0.0)))
        return min(range(least, min(most, end) + 1), key=self.beside)

    @property
    def hidden(self) -> bool:
        """Whether the server learns only the totals of sums."""
        return self.sum != CLEAR

    @property
    def noisy(self) -> bool:
        """Whether a mechanism noises the values that declare a sensitivity."""
        return self.noise != NO_NOISE

    def survivors(self, cohort: int) -> int:
        """The least number of contributions in a sum over a cohort of this size. No sum opens with fewer."""
        return cohort - dropping(self.dropout, cohort)

    def colluding(self, cohort: int) -> int:
        """The largest number of clients of a cohort of this size that collude with the server."""
        return colluding(self.corrupt or 0.0, cohort)

    def tells(self, spec: ValueSpec) -> bool:
        """Whether clients may see the totals of this value without noise, as by the next model.

        They see totals unless no broadcast can follow and no model is made of the value: one round, with one
        query. Noise that is charged against them hides what each observes, if it is a tenth of the
        sensitivity or more: less counts as none elsewhere too (`mechanisms.charges.HIDES`).
        """
        noised = self.noisy and spec.sensitivity.get((self.unit, self.adjacency), 0.0) > 0
        if noised and spec.name not in self.non_private and OTHERS in self.adversaries:
            return self.noise_multiplier < 0.1
        later = self.max_rounds > 1 or bool(spec.schedule.initial or spec.schedule.extra)
        return later or spec.on_model or spec.schedule.once

    def apart(self, spec: ValueSpec) -> int:
        """The least number of rounds between two contributions of a client to the sum of this value."""
        return self.separation if spec.each_round else 1

    def correlation(self, spec: ValueSpec) -> CorrelatedNoise:
        """How the noise on the totals of this value hangs together over rounds."""
        most = max(1, spec.asked(self.max_rounds, self.separation))
        if spec.each_round and spec.accumulates:
            return CorrelatedNoise(self.coefficients, self.separation, most, self.decays)
        return CorrelatedNoise((1.0,), self.separation, most)

    def beside(self, cohort: int, *, told: bool = True) -> int:
        """The number of honest others that surely hide a client in a sum over this many clients: T - 1 - c.

        T is the least number of contributions that opens a sum, and c the most clients that collude. If the
        total is `told`, each client observes it beside them, and takes its own value off: one fewer.
        """
        return self.survivors(cohort) - 1 - self.colluding(cohort) - told

    def guess_error(self, spec: ValueSpec | None = None) -> float:
        """The least error of a linear guess of one client's value from one hidden sum of this value.

        The error is in standard deviations of the value. The bound assumes that clients' values are
        independent and have equal variance. It need not hold for clients whose data are distributed
        differently, or for values so small that rounding to the grid dominates. Each client refuses an order
        under which a guess could be better. With fixed batches the error holds for differences of rounds too.
        It holds against the server and its colluders, and against each client that sees the total
        (`tells`) and knows its own value.

        Args:
            spec: of the summed value. None: the sum that reveals most.

        Raises:
            ConfigError: sums are not hidden.
        """
        if not self.hidden or self.max_client_weight is None:
            raise ConfigError("Expected a plan that hides sums, got one of sums in the clear.")
        kinds = {"equal", *self.weights.values()} if spec is None else {self.weights.get(spec.name, "equal")}
        told = spec is None or self.tells(spec)
        beside = self.beside(self._thinnest(), told=told)
        shares = [share_within(1, 1, beside)]
        if "draws" in kinds:  # the server chooses the draws; clients refuse shares above `max_client_weight`
            shares.append(exact(self.max_client_weight))
        if "counts" in kinds:
            shares.append(share_within(*self.counts, beside))
        if self.fixed_batch is not None:
            shares.append(share_within(*self._weights, self._batch_beside(self.fixed_batch, told)))
        return guess_error(max(shares))

    def knowing(self, cohort: int) -> int:
        """The largest number of clients of a cohort whose noise shares an adversary knows.

        A colluding client knows its own share. If other clients are adversaries, each of them knows its own
        share.
        """
        return max(self.colluding(cohort), 1 if OTHERS in self.adversaries else 0)

    def count(self, records: int) -> int:
        """The number that a client states to others: `records` or the public number, within the bounds."""
        told = records if self.public_num_examples is None else self.public_num_examples
        return min(max(told, self.min_num_examples), self.max_num_examples)

    def terms(self) -> Terms:
        """The ledger's terms under this plan."""
        return Terms(
            unit=self.unit,
            adjacency=self.adjacency,
            delta=self.delta,
            budget=self.budget,
            adversaries=self.adversaries,
            # Without noise nothing was calibrated, so there is no number of releases to enforce.
            max_releases=None if not self.noisy or not self.max_releases else self.max_releases,
        )

    def session(self, clients: Sequence[str], nonce: bytes) -> bytes:
        """32 bytes that bind every message to this plan, these clients and one run (`nonce`)."""
        # The nonce separates the runs of a study: no party accepts a message of another run.
        who = ",".join(clients)
        return hashlib.sha256(prefix("session") + self.digest() + who.encode() + nonce).digest()

    def digest(self) -> bytes:
        """SHA-256 of the canonical plan. Parties with equal digests compute equal charges."""
        return hashlib.sha256(prefix("plan") + self.text().encode()).digest()

    def text(self) -> str:
        """The plan as canonical JSON: equal plans have equal texts."""
        # Sorted: the order in which tables were written does not change the text.
        return json.dumps(self.words(), sort_keys=True)

    def words(self) -> dict[str, Any]:
        """Every field by its name, as in digests and files."""
        return vars(self) | {"weights": dict(self.weights), "max_releases": dict(self.max_releases)}
