"""The sections [privacy] and [dpsgd] of a study, and the privacy plan of each arm that follows from them.

`epsilon` is one number, in whichever of the two sections it stands: the cost of all that one client releases
in one run, with its training. `with_one_epsilon` copies it to the other section, and docs/budget.md has the
rule by which training and noised values share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf, isfinite
from typing import Annotated, Any, Final, Literal

from dp_accounting import DpEvent, GaussianDpEvent

from securefl.accounting.events import steps_event
from securefl.accounting.store import require_delta
from securefl.algorithm.plan import NO_NOISE, RATES, Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError
from securefl.core.ranges import Count, Known, Range, Ranged, refused
from securefl.core.release import KEY_HOLDER, Adjacency, Unit, neighbours_missing
from securefl.dp.calibration import check_training, multiplier_beside, shared_training_noise, sigma
from securefl.dp.correlated import CorrelatedNoise
from securefl.linear.registry import require as require_scores
from securefl.mechanisms import registry as mechanisms
from securefl.mechanisms.mechanism import KEY_HOLDER_ADDS
from securefl.sums.registry import names as sum_names
from securefl.training.private_steps import DPSGD

# The texts of legends for these words of the configuration.
_SUMS = {
    "clear": "sums in the clear",
    "masked": "masked sums",
    "ckks": "encrypted sums",
    "two-server": "sums of two servers",
}
_SCORES = {
    "clear": "scores in the clear",
    "ckks": "encrypted scores",
    "pads": "scores under pads",
}
_ADJACENCIES = {
    "add-remove": "one added or removed",
    "replace-one": "one replaced",
    "zero-out": "one zeroed",
}
_UNITS = {"record": "per record", "client": "per client"}
_SERVERS = {"active": "against a lying server", "semi-honest": "against a semi-honest server"}
_CALIBRATIONS = {"exact": "exact calibration", "paper": "the paper's calibration"}


_UNSIZED: Final = 1e5
"""The noise multiplier until the one that a target needs is known. A model that is trained with it is noise,
so a use by mistake costs accuracy and no privacy."""


def with_one_epsilon(table: Mapping[str, Any]) -> dict[str, Any]:
    """A study's table, in which a section that needs an epsilon and has none gets that of the other one."""
    privacy, training = table.get("privacy"), table.get("dpsgd")
    found = dict(table)
    if not isinstance(privacy, dict) or not isinstance(training, dict):
        return found
    if "epsilon" not in privacy and privacy.get("noise") != NO_NOISE and _is_target(training.get("epsilon")):
        found["privacy"] = {**privacy, "epsilon": training["epsilon"]}
    if not {"epsilon", "noise_multiplier"} & {*training} and _is_target(privacy.get("epsilon")):
        found["dpsgd"] = {**training, "epsilon": privacy["epsilon"]}
    return found


def _is_target(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0


@dataclass(frozen=True, kw_only=True)
class DPSGDSection(Ranged):
    """The section [dpsgd]: private training by a given noise, or by the epsilon that it may cost.

    Attributes:
        clip_norm: C, the largest L2 norm of a record's clipped gradient.
        noise_multiplier: z. The noise on the sum of clipped gradients has deviation z C in every coordinate.
        epsilon: the target in place of `noise_multiplier`: what all that a client releases in a run may cost.
            Each arm's noise follows from it, the schedule, and the other noised values (`training_of`).
        sampling_rate: q in (0, 1]. Each record enters each step with this probability, independently.
        expected_batch: the divisor of the noised sum, such as q times a declared nominal size of a client. It
            and q are public, and must not be computed from the records.
        steps: noised steps in a round. Each one is charged, even with an empty batch.
        optimizer: "sgd" or "adam" (betas 0.9 and 0.999), on the noised gradient.
        learning_rate: the learning rate of every step.
        momentum: of SGD.
        weight_decay: the weight of |w|^2 / 2, which reads no records and costs no privacy.
        proximal: FedProx's mu, the weight of |w - w_global|^2 / 2, which costs no privacy either.
        chunk: the public number of rows whose gradients are computed at a time, a multiple of 32. By default
            it follows from `expected_batch`.
    """

    clip_norm: float
    noise_multiplier: float | None = None
    epsilon: float | None = None
    sampling_rate: float
    expected_batch: float
    steps: int
    optimizer: Literal["sgd", "adam"]
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    chunk: int | None = None

    def refusals(self) -> Iterator[str]:
        if self.epsilon is not None and not _is_target(self.epsilon):
            why = "Ask for more."
            if not self.epsilon <= 0:
                why = "To train without private noise, leave [dpsgd] out."
            yield f"Expected a finite epsilon > 0, got {self.epsilon:g}. {why}"
        if (self.epsilon is None) == (self.noise_multiplier is None):
            got = "neither" if self.epsilon is None else "both"
            yield (
                f"Expected `epsilon`, from which the noise follows, or `noise_multiplier`, got {got}. "
                f"{'Add' if self.epsilon is None else 'Keep'} one of them."
            )
        if self.noise_multiplier == 0:
            yield "Expected noise_multiplier > 0, got 0. To train without private noise, leave [dpsgd] out."
        yield from refused(self.sized, self.noise_multiplier or _UNSIZED)

    def sized(self, noise_multiplier: float) -> DPSGD:
        """This training with this noise. Raises ValueError for a value out of range."""
        own = {own.name: getattr(self, own.name) for own in fields(self)}
        del own["epsilon"]
        return DPSGD(**{**own, "noise_multiplier": noise_multiplier})

    @property
    def training(self) -> DPSGD:
        """This training with its noise. With a target it gets so much noise that it learns nothing, until
        `training_of` knows an arm's schedule."""
        return self.sized(_UNSIZED if self.noise_multiplier is None else self.noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class PrivacySection(Ranged):
    """The section [privacy]: the unit of privacy, the protections, and the adversaries.

    A study states every choice that its guarantee depends on; only the key size has a silent default.

    Attributes:
        sum: how updates and statistics are summed: "clear", or the scheme by which the server learns totals
            only: "masked", "ckks" or "two-server".
        scores: how the server obtains one number per client, such as a profile's divergence: "clear", or the
            scheme by which it learns that number alone.
        noise: who adds the noise of values with a sensitivity: "none", "local" (each client), "distributed"
            (each client a share, in a hidden sum), "central" (the server, which is trusted) or "key-holder"
            (of a two-server sum).
        unit: what epsilon protects: one "record" of a client, or a whole "client".
        adjacency: in what neighbouring data differ: one unit added or removed ("add-remove"), replaced
            ("replace-one"), or its value replaced by zeros ("zero-out").
        delta: of epsilon.
        budget: the largest epsilon of a client, `inf` for none.
        adversaries: the parties that the budget must hold against.
        non_private: names of values that clients may send without noise. Epsilon is then infinite.
        parameters: the parameters of CKKS. Pads have no such key: they take "words-64" (the default) or
            "words-128", under which a score errs by less than 1e-11.
        epsilon: what all that a client releases in a run may cost, training included. The noise of the values
            follows from it. `inf`: no value is noised, as if `non_private` named them all.
        separation: the least number of rounds between two contributions of a client to a sum of each round.
            Cohorts are drawn from the clients that may contribute, and the others refuse. A client then
            contributes in at most one of so many rounds, for which noise is calibrated.
        bands: over how many rounds the noise of these sums is correlated, at most `separation`, which is the
            default. It then adds up less in the model. 1 for independent noise. "blt": over all rounds, by
            one or two buffers. They err up to 7 % more than the default and need less memory.
        sampling_rate: the chance that a client which is asked takes part, by a secret draw of its own. It
            sends zeros otherwise. This amplifies privacy against `others`, for which noise is calibrated.
            Below 1: noise = "central" in sums in the clear, per client, against others alone.
        calibration: "exact", or FedLog's theorem ("paper").
        dropout, corrupt: for hidden sums and distributed noise, the largest shares of a cohort that may drop
            out, and that may collude with the server (0: none may).
        min_cohort_size: the smallest number of clients in the cohort of one sum.
        min_honest: the smallest number of honest contributors to any combination of opened sums.
        max_client_weight: the largest squared share of one client in a hidden sum over it and the honest
            contributors that surely remain. The RMS error of an estimate of its value is then at least
            sqrt(1 - max_client_weight) of the value's standard deviation. Each client checks these three.
        min_num_examples, max_num_examples: public bounds. A client clips its number of records to them before
            it weights its value by that number.
        fixed_batch: clients are in fixed batches of this size, and hidden sums are of whole batches alone. So
            differences of rounds reveal sums of batches, and no client's value. Needs dropout = 0.
        secagg: "active", secure against a server that lies, or "semi-honest".
        max_retries: the number of retries of aborted aggregations.
        force_delta: allow a delta of 1 / n or more, which allows publishing one of n records (or clients) as
            it is.
        ledger: the file, beside the study, of a ledger that all runs over the same records share. `budget`
            then holds over all of them together. Without it each arm and seed is accounted alone.
    """

    sum: Annotated[str, Known(sum_names)] = field(metadata={"words": _SUMS.get})
    scores: Literal["clear", "ckks", "pads"] = field(metadata={"words": _SCORES.get})
    noise: Annotated[str, Known(mechanisms.names)] = field(metadata={"words": mechanisms.legend})
    unit: Unit = field(metadata={"words": _UNITS.get})
    adjacency: Adjacency = field(metadata={"words": _ADJACENCIES.get})
    delta: Annotated[float, Range("(0, 1)", "Take one below 1 / records, such as 1e-5.")]
    budget: Annotated[float, Range("[0, inf]")]
    adversaries: tuple[Literal["server", "key-holder", "others"], ...]
    non_private: tuple[str, ...]
    parameters: Literal["strong", "compact", "words-64", "words-128"] = "strong"
    epsilon: float | None = None
    separation: Count = 1
    bands: Count | Literal["blt"] | None = None
    sampling_rate: Annotated[float, RATES] = 1.0
    calibration: Literal["exact", "paper"] = field(default="exact", metadata={"words": _CALIBRATIONS.get})
    dropout: float | None = None
    corrupt: float | None = None
    min_cohort_size: Count | None = None
    min_honest: Count | None = None
    max_client_weight: Annotated[float, Range("(0, 1)")] | None = None
    min_num_examples: Count | None = None
    max_num_examples: Count | None = None
    fixed_batch: Count | None = None
    secagg: Literal["active", "semi-honest"] = field(default="active", metadata={"words": _SERVERS.get})
    max_retries: Annotated[int, Range("[0, inf)")] = 0
    force_delta: bool = False
    ledger: str | None = None

    def refusals(self) -> Iterator[str]:
        if 0 < self.delta < 1:
            yield from refused(require_delta, self.delta)
        yield from refused(require_scores, self.scores, self.parameters)
        if (said := neighbours_missing(self.unit, self.adjacency)) is not None:
            yield said
        if self.ledger is not None and (not self.ledger or self.budget == inf):
            yield (
                "Expected a path as `ledger`, and a finite `budget`, which all runs in it spend together, "
                f"got {self.ledger!r} and budget = {self.budget:g}. Set the largest epsilon that these "
                "records may ever be charged."
            )
        if self.sum in sum_names() and self.noise in mechanisms.names():
            yield from self._refused_noise()
            yield from self._refused_together()

    def _refused_noise(self) -> Iterator[str]:
        if (self.noise == NO_NOISE) != (self.epsilon is None):
            if self.epsilon is None:
                yield (
                    f"Expected `epsilon` with noise = {self.noise!r}, got none. Write the epsilon that all "
                    "releases may cost together, such as epsilon = 2."
                )
            else:
                others = ", ".join(kind for kind in mechanisms.names() if kind != NO_NOISE)
                yield (
                    f"Expected no `epsilon` with noise = {self.noise!r}, got {self.epsilon}. Choose another "
                    f"noise ({others}), or leave `epsilon` out. The epsilon of private training stands in "
                    "[dpsgd]."
                )
        elif self.epsilon is not None and not self.epsilon > 0:
            yield (
                f"Expected epsilon > 0 (inf for no noise), got {self.epsilon}. No noise gives 0. Write a "
                "number such as 2."
            )
        # Another separation is refused as no number of rounds.
        if isinstance(self.bands, int) and 0 < self.separation < self.bands:
            yield (
                f"Expected at most {self.separation} bands, the `separation`, got {self.bands}: the columns "
                "of two contributions of a client would overlap. "
                f"Set separation = {self.bands}, or leave bands out."
            )
        if self.bands == "blt" and self.separation == 1:
            yield (
                'Expected a separation of 2 rounds or more with bands = "blt", got 1: buffers correlate '
                "nothing if a client may contribute in every round. Set separation = 2, or leave bands out."
            )
        if self.sampling_rate < 1 and self.noise == NO_NOISE:
            yield (
                f'Expected noise = "central" with a `sampling_rate` below 1, got "{NO_NOISE}": a client '
                "draws for each noised sum, and without noise none hides it. Set that, or leave "
                "`sampling_rate` out."
            )
        if self.sampling_rate < 1 and self.calibration == "paper":
            yield (
                'Expected calibration = "exact" with a `sampling_rate` below 1, got "paper": FedLog\'s '
                "theorem counts no draws. Leave calibration out."
            )
        if self.noise != NO_NOISE:
            by_holder = mechanisms.kind_of(self.noise).total_by == KEY_HOLDER
            if by_holder and self.sum != KEY_HOLDER_ADDS:
                yield (
                    f'Expected noise = "{self.noise}" with sum = "{KEY_HOLDER_ADDS}" alone: there the '
                    "key holder sums the pads and adds the noise."
                )

    def _refused_together(self) -> Iterator[str]:
        """What is wrong with the bounds that clients need when they protect each other.

        These bounds have no defaults: a wrong assumption would void the guarantee.
        """
        hidden = self.sum != "clear"
        if self.fixed_batch is not None and not hidden:
            yield "Expected fixed_batch with hidden sums alone: it protects no sum in the clear."
        if self.max_retries and not hidden:
            yield 'Expected no max_retries with sum = "clear".'
        together = hidden or (self.noise != NO_NOISE and mechanisms.kind_of(self.noise).mutual)
        if not together:
            if self.dropout is not None:
                others = {self.noise} - {NO_NOISE, *mechanisms.OURS}
                mutual = [w for w in (*mechanisms.OURS, *others) if mechanisms.kind_of(w).mutual]
                or_noise = " or ".join(f'noise = "{word}"' for word in mutual)
                yield f'Expected no `dropout` but with a `sum` other than "clear", or with {or_noise}.'
            return
        examples = {
            "dropout": "0",
            "corrupt": "0.2",
            "min_cohort_size": "10",
            "min_honest": "4",
            "max_client_weight": "0.4",
        }
        missing = [word for word in examples if getattr(self, word) is None]
        if missing:
            yield (
                f"Expected {' and '.join(f'`{word}`' for word in missing)} if sums are hidden or noise is "
                "shared: a client's privacy then depends on the others. State how many may drop out and how "
                "many may collude (0: none), and how few may be summed. For cohorts of ten or more, add "
                f"{', '.join(f'{word} = {examples[word]}' for word in missing)}."
            )
        dropout, corrupt = self.dropout or 0.0, self.corrupt or 0.0
        if not (dropout >= 0 and 0 <= corrupt < 1 - dropout):
            yield (
                f"Expected dropout >= 0, corrupt >= 0 and less than 1 together, got {dropout} and {corrupt}."
            )

    def counts_are_public(self, leaving: bool) -> bool:
        """Whether neighbouring data sets have equal numbers of records at each client.

        leaving: whether a record may become the server's. A replaced record may then leave its client, or
        come to it, so the numbers may differ.
        """
        return self.unit == "record" and self.adjacency == "replace-one" and not leaving

    def plan(
        self,
        rounds: int,
        specs: Sequence[ValueSpec] = (),
        *,
        records: int = 2**31,
        clients: int = 1,
        leaving: bool = False,
        accepts_kept_state: bool = False,
    ) -> Plan:
        """The privacy plan of a run.

        rounds: the number of rounds. specs: the specs of the values that clients contribute.
        records, clients: the public numbers of all of them. n in weights n_k / n lies between the two.
        leaving: whether a client's record may become the server's, depending on its content.
        accepts_kept_state: as in `Plan`, for this arm.
        """
        releases = self._releases(rounds, specs)
        sums = [s for s in specs if s.reduction == "sum"]
        weights = {s.name: s.weighs for s in sums if s.weighs != "equal"}
        drawn = max((s.draws for s in sums), default=0)
        spent, correlation = self._spent(rounds, specs), self.correlation(rounds)
        noised = self._noised(rounds, specs)
        drawn_for = self._noised(rounds, sums) if self.sampling_rate < 1 else 0
        return Plan(
            sum=self.sum,
            scores=self.scores,
            noise=NO_NOISE if self.epsilon == inf else self.noise,
            noise_multiplier=self._multiplier(noised, spent, drawn_for),
            separation=self.separation,
            coefficients=correlation.coefficients,
            decays=correlation.decays,
            sampling_rate=self.sampling_rate if self._adds_noise else 1.0,
            dropout=self.dropout or 0.0,
            corrupt=self.corrupt,
            min_cohort_size=self.min_cohort_size,
            max_cohort_size=max(
                [1, self.min_cohort_size or 1, *(s.cohort or s.draws or clients for s in sums)]
            ),
            min_honest=self.min_honest,
            max_client_weight=self.max_client_weight,
            weights=weights,
            draws=drawn or None,
            min_num_examples=self.min_num_examples or 1,
            max_num_examples=self.max_num_examples or 2**31,
            fixed_batch=self.fixed_batch,
            # n is one sum of counts: each client has at least one record, and no client more than all
            min_records=min(clients, records),
            max_records=records,
            # if the number of records is private, a public average replaces it
            public_num_examples=None if self.counts_are_public(leaving) else max(1, round(records / clients)),
            secagg=self.secagg,
            accepts_kept_state=accepts_kept_state,
            max_retries=self.max_retries,
            unit=self.unit,
            adjacency=self.adjacency,
            delta=self.delta,
            budget=None if self.budget == inf else self.budget,
            adversaries=self.adversaries,
            # Whoever asks for an infinite epsilon asks for no noise on any value.
            non_private=tuple(s.name for s in specs) if self.epsilon == inf else self.non_private,
            max_rounds=rounds,
            max_releases=releases,
        )

    def training_of(self, target: DPSGDSection, rounds: int, specs: Sequence[ValueSpec]) -> DPSGD:
        """The private training of a run whose clients send values of these specs, with its noise.

        With a target, the noise follows from the events of training that the specs charge, each round and
        each retry. They are public and the same at every client, and no client's cohort amplifies its
        privacy. So the noise is the same for all clients, and the epsilon of a client that is in every round
        is at most the target. If other values are noised, training alone costs as much as all of them alone.

        Args:
            target: the section [dpsgd].
            rounds: the number of rounds.
            specs: of all values, after private training by `target.training`.

        Raises:
            ConfigError: no noise reaches the target.
        """
        if target.epsilon is None:
            return target.training
        if (self.unit, self.adjacency) != ("record", "add-remove"):
            raise ConfigError(
                '[dpsgd] Expected unit = "record" and adjacency = "add-remove" in [privacy] with a target '
                f"`epsilon`, got {self.unit!r} and {self.adjacency!r}: private training is accounted per "
                "record that is added or removed. Take these two, or give `noise_multiplier`."
            )
        spent = self._spent(rounds, specs)
        if not spent:  # this arm trains nothing privately
            return target.training
        releases = self._noised(rounds, specs) if self._adds_noise else 0
        try:
            noise = shared_training_noise(
                target.epsilon, self.delta, spent, releases=releases, at=target.training.noise_multiplier
            )
        except ConfigError as error:
            raise ConfigError(f"[dpsgd] {error}") from None
        return target.sized(noise)

    def correlation(self, rounds: int) -> CorrelatedNoise:
        """How the noise on sums that a model adds up hangs together over rounds."""
        bands = (
            (min(self.bands, rounds) if isinstance(self.bands, int) else self.bands)
            if self._adds_noise
            else 1
        )
        return CorrelatedNoise.optimised(rounds=rounds, separation=self.separation, bands=bands)

    @property
    def _adds_noise(self) -> bool:
        return self.epsilon is not None and self.epsilon < inf

    def _releases(self, rounds: int, specs: Sequence[ValueSpec]) -> dict[str, int]:
        """The most releases of each value. A retry of a sum has fresh noise, so it is counted beforehand."""
        return {
            s.name: s.asked(rounds, self.separation) + (self.max_retries if s.reduction == "sum" else 0)
            for s in specs
        }

    def _noised(self, rounds: int, specs: Sequence[ValueSpec]) -> int:
        """The most releases of all values that noise bounds."""
        found = self._releases(rounds, specs)
        return sum(found[s.name] for s in specs if s.sensitivity.get((self.unit, self.adjacency), 0.0) > 0)

    def _spent(self, rounds: int, specs: Sequence[ValueSpec]) -> Counter[DpEvent]:
        """The events of private training before these values, as the ledger charges them at most."""
        found, spent = self._releases(rounds, specs), Counter[DpEvent]()
        for s in specs:
            if s.training is not None and self.unit == "record":
                # Initial queries precede training, so training is charged for the other releases alone.
                spent[s.training] += found[s.name] - s.schedule.initial
        return +spent

    def _multiplier(self, releases: int, spent: Mapping[DpEvent, int], drawn_for: int) -> float:
        """The noise multiplier (sigma over sensitivity) at which all releases and training cost `epsilon`.

        drawn_for: the number of releases among them in which a client takes part by a draw.
        """
        if self.epsilon is None or self.epsilon == inf:
            return 0.0
        if spent and self.calibration == "paper":
            raise ConfigError(
                '[privacy] Expected calibration = "exact" with private training ([dpsgd]), got "paper": '
                "FedLog's theorem counts its own noise alone. Leave the line out."
            )
        try:
            check_training(self.epsilon, self.delta, spent)
        except ConfigError as error:
            raise ConfigError(
                f"{error} The noise of training is `noise_multiplier` in [dpsgd]; leave it out, and it "
                "follows from epsilon."
            ) from None
        if not releases:
            return 0.0
        if drawn_for:  # of clients, beside whom no training is charged
            sampled = {steps_event(self.sampling_rate, 1.0, 1): drawn_for}
            return shared_training_noise(
                self.epsilon, self.delta, {**sampled, GaussianDpEvent(1.0): releases - drawn_for}
            )
        if spent:
            return multiplier_beside(self.epsilon, self.delta, releases=releases, spent=spent)
        return sigma(self.epsilon, self.delta, releases=releases, sensitivity=1.0, method=self.calibration)
