"""A study as TOML: strict, with errors that name the key, the value and the nearest valid name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from math import floor, inf
from pathlib import Path
from typing import Any, Literal, Protocol

from dp_accounting import DpEvent

from securefl.core.errors import ConfigError
from securefl.core.legible import require_legible
from securefl.core.reading import convert, near
from securefl.core.release import Adjacency, Unit, neighbours_missing
from securefl.data import NAMES, Corruption, Partition
from securefl.dp.calibration import check_training, multiplier_beside, require_delta, sigma
from securefl.engines.inprocess import Faults
from securefl.plan import Plan
from securefl.rounds import Algorithm, Sends
from securefl.scores import require as require_scores
from securefl.storage.texts import read_text, toml
from securefl.sums import words
from securefl.training import LocalTraining, ModelConfig
from securefl.training.dpsgd_config import DPSGD
from securefl.training.task import Problem

MOST_ROUNDS = 10**6
_LONGEST_NAME = 200
"""Longest name in bytes. A name is a folder's too, and file systems bear 255."""


class ProtocolOptions(Protocol):
    """Options that build an algorithm.

    The entry points of the group `securefl.protocols` name such classes.
    """

    def build(self, problem: Problem) -> Algorithm: ...


@dataclass(frozen=True, kw_only=True)
class StudySection:
    """name: for people. seeds: every arm runs once per seed. target: accuracy to be reached."""

    name: str
    rounds: int
    seeds: tuple[int, ...] = (0,)
    target: float | None = None

    def __post_init__(self) -> None:
        require_name(self.name)
        if not 1 <= self.rounds <= MOST_ROUNDS or not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"Expected 1 to {MOST_ROUNDS:,} rounds and at least one seed, each once.")
        if self.target is not None and not 0 < self.target <= 1:
            raise ValueError(f"Expected 0 < target <= 1, got {self.target}.")


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """source: a data set's name. clients: N. records: how many training records there are in all, drawn by
    the seed, by default the whole set. download: fetch missing files first."""

    source: str
    clients: int
    partition: Partition
    records: int | None = None
    download: bool = False

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ValueError(f"Expected clients >= 1, got {self.clients}.")
        if self.records is not None and self.records < 1:
            raise ValueError(f"Expected records >= 1, got {self.records}.")
        if self.source not in NAMES:
            raise ValueError(
                f"Expected source among {', '.join(NAMES)}, got {self.source!r}{near(self.source, NAMES)}."
            )


@dataclass(frozen=True, kw_only=True)
class PrivacySection:
    """What is protected, how, and against whom. Only the key size has a silent default.

    Attributes:
        budget: the largest epsilon of a client, `inf` for none.
        against: the parties that the budget must hold against.
        unprotected: names of values that may leave without noise. Epsilon is then infinite.
        parameters: the parameters of CKKS. With "strong-encrypted" the baseline is encrypted too (mode E).
            Batches cannot have that, and pads have parameters of their own.
        epsilon: the epsilon that the noise is calibrated for, over all rounds, `inf` for no noise.
        calibration: "exact", or FedLog's theorem ("paper").
        dropout, corrupt: for hidden sums and distributed noise, the largest shares of a cohort that may fall
            silent, and that may collude with the server (0: none may).
        least_cohort: least number of clients that are asked for one sum.
        least_honest: least number of honest contributors that any combination of opened sums keeps.
        largest_share: largest share of a sum's weight that one client may have. Each client checks these
        three.
        secagg: "active", against a server that lies, or "semi-honest".
        spare: aborted aggregations that may be tried again.
        force_delta: allow a delta of 1 / n or more, which allows publishing one of n records (or clients) as
        it is.
    """

    sum: str
    scores: Literal["clear", "ckks", "batches", "pads"]
    noise: Literal["none", "local", "distributed", "central", "key-holder"]
    unit: Unit
    adjacency: Adjacency
    delta: float
    budget: float
    against: tuple[Literal["server", "key-holder", "others"], ...]
    unprotected: tuple[str, ...]
    parameters: Literal["strong", "compact", "strong-encrypted"] = "strong"
    epsilon: float | None = None
    calibration: Literal["exact", "paper"] = "exact"
    dropout: float | None = None
    corrupt: float | None = None
    least_cohort: int | None = None
    least_honest: int | None = None
    largest_share: float | None = None
    secagg: Literal["active", "semi-honest"] = "active"
    spare: int = 0
    force_delta: bool = False

    def __post_init__(self) -> None:
        require_delta(self.delta)
        if self.sum not in words():
            known = ", ".join(map(repr, words()))
            raise ValueError(f"Expected sum among {known}, got {self.sum!r}{near(self.sum, words())}.")
        require_scores(self.scores, self.parameters)
        if (said := neighbours_missing(self.unit, self.adjacency)) is not None:
            raise ValueError(said)
        if not self.budget >= 0:
            raise ValueError(f"Expected budget >= 0 (inf for none), got {self.budget}.")
        if (self.noise == "none") != (self.epsilon is None):
            raise ValueError(
                f"Expected `epsilon` with noise, and none without, got {self.epsilon} with noise = "
                f"{self.noise!r}."
            )
        if self.epsilon is not None and not self.epsilon > 0:
            raise ValueError(f"Expected epsilon > 0 (inf for no noise), got {self.epsilon}.")
        together = self.noise == "distributed" or self.sum != "clear"
        if together != (self.dropout is not None):
            raise ValueError(
                'Expected `dropout` with a `sum` other than "clear", or noise = "distributed", and else none.'
            )
        if self.noise == "key-holder" and self.sum != "two-server":
            raise ValueError(
                'Expected noise = "key-holder" with sum = "two-server" alone, where it sums pads.'
            )
        if together:
            self._check_together()
        if self.spare < 0 or (self.spare and self.sum == "clear"):
            raise ValueError('Expected spare >= 0, and none with sum = "clear".')
        if min(self.least_cohort or 1, self.least_honest or 1) < 1 or not 0 < (self.largest_share or 1) <= 1:
            raise ValueError("Expected least_cohort >= 1, least_honest >= 1 and 0 < largest_share <= 1.")

    def _check_together(self) -> None:
        """Refuse to assume what clients must state when they stand in for each other's privacy."""
        words = ("corrupt", "least_cohort", "least_honest", "largest_share")
        missing = [word for word in words if getattr(self, word) is None]
        if missing:
            raise ValueError(
                f"Expected {' and '.join(f'`{word}`' for word in missing)} where sums are hidden or noise is "
                "shared: there each client leans on the others. State how many may collude (0: none) and how "
                "few may be summed."
            )
        dropout, corrupt = self.dropout or 0.0, self.corrupt or 0.0
        if not (dropout >= 0 and 0 <= corrupt < 1 - dropout):
            raise ValueError(
                f"Expected dropout >= 0, corrupt >= 0 and less than 1 together, got {dropout} and {corrupt}."
            )

    def plan(
        self, rounds: int, sends: Sequence[Sends] = (), *, records: int = 2**31, clients: int = 1
    ) -> Plan:
        """The plan of a run of so many rounds in which clients send these values.

        records, clients: the public numbers of all of them. Counts in weights are clipped by them.
        """
        share = self.largest_share or 1.0
        counts_are_public = self.unit == "record" and self.adjacency == "replace-one"
        noised = [s for s in sends if s.sensitivity.get((self.unit, self.adjacency), 0.0) > 0]
        releases = {s.name: s.asked(rounds) + (self.spare if s.how == "sum" else 0) for s in sends}
        # Introductions (`extra`) precede training, so training is counted for the other releases alone.
        spent: Counter[DpEvent] = Counter()
        for s in sends:
            if s.training is not None and self.unit == "record":
                spent[s.training] += releases[s.name] - s.extra
        return Plan(
            sum=self.sum,
            scores=self.scores,
            noise="none" if self.epsilon == inf else self.noise,
            noise_multiplier=self._multiplier(sum(releases[s.name] for s in noised), spent),
            dropout=self.dropout or 0.0,
            corrupt=self.corrupt,
            least_cohort=self.least_cohort or 1,
            least_honest=self.least_honest or 1,
            largest_share=share,
            largest_count=max(1, floor(share * records)),
            # under add-remove, and per client, the number of records is data: an average stands in for it
            public_count=None if counts_are_public else max(1, round(records / clients)),
            secagg=self.secagg,
            spare=self.spare,
            unit=self.unit,
            adjacency=self.adjacency,
            delta=self.delta,
            budget=None if self.budget == inf else self.budget,
            against=self.against,
            unprotected=self.unprotected,
            schedule=rounds,
            releases=releases,
        )

    def _multiplier(self, releases: int, spent: Mapping[DpEvent, int]) -> float:
        """Sigma over sensitivity at which all releases, and the training before them, cost `epsilon`."""
        if self.epsilon is None or self.epsilon == inf:
            return 0.0
        if spent and self.calibration == "paper":
            raise ConfigError(
                '[privacy] Expected calibration = "exact" beside private training ([dpsgd]), got "paper": '
                "FedLog's theorem counts its own noise alone. Leave the line out."
            )
        if not releases:
            check_training(self.epsilon, self.delta, spent)
            return 0.0
        if spent:
            return multiplier_beside(self.epsilon, self.delta, releases=releases, spent=spent)
        return sigma(self.epsilon, self.delta, releases=releases, sensitivity=1.0, method=self.calibration)


@dataclass(frozen=True, kw_only=True)
class CostSection:
    """Time and energy: a published preset (its constant message sizes), or real bytes (`real_bytes`)."""

    preset: Literal["gas_turbine_v1", "gas_turbine_v2", "emnist_v1", "emnist_v2", "cifar10_v2"] = "emnist_v2"
    real_bytes: bool = True


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One protocol with its options, under the name it has in tables and plots."""

    name: str
    protocol: str
    options: ProtocolOptions

    def __post_init__(self) -> None:
        require_name(self.name)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A whole study; `text` is the TOML it was read from."""

    study: StudySection
    data: DataSection
    model: ModelConfig
    local: LocalTraining
    privacy: PrivacySection
    arms: tuple[Arm, ...]
    corruption: Corruption = field(default_factory=Corruption)
    network: Faults = field(default_factory=Faults)
    cost: CostSection = field(default_factory=CostSection)
    dpsgd: DPSGD | None = None
    text: str = ""


_SECTIONS: Mapping[str, type[Any]] = {
    "study": StudySection,
    "data": DataSection,
    "model": ModelConfig,
    "local": LocalTraining,
    "privacy": PrivacySection,
    "corruption": Corruption,
    "network": Faults,
    "cost": CostSection,
    "dpsgd": DPSGD,
}
_OPTIONAL = ("corruption", "network", "cost", "dpsgd")


def read(path: Path) -> Study:
    """The study in a TOML file. Raises ConfigError for anything that cannot be used as written."""
    text = read_text(path)
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(text: str) -> Study:
    """The study in a TOML text."""
    table = toml(text)
    for key in table:
        if key not in (*_SECTIONS, "arm"):
            raise ConfigError(f"Unknown section [{key}]{near(key, (*_SECTIONS, 'arm'))}.")
    missing = [name for name in (*_SECTIONS, "arm") if name not in table and name not in _OPTIONAL]
    if missing:
        raise ConfigError(f"Missing section {', '.join(f'[{name}]' for name in missing)}.")
    sections = {name: convert(kind, table[name], name) for name, kind in _SECTIONS.items() if name in table}
    return Study(**sections, arms=_arms(table["arm"]), text=text)


def _arms(tables: Any) -> tuple[Arm, ...]:
    if not isinstance(tables, list) or not tables:
        raise ConfigError("Expected at least one [[arm]].")
    arms = tuple(_arm(table, place) for place, table in enumerate(tables, start=1))
    names = [slug(arm.name) for arm in arms]
    if len(set(names)) < len(names):
        raise ConfigError(f"Expected arms with different names, got {[arm.name for arm in arms]}.")
    return arms


def _arm(table: Mapping[str, Any], place: int) -> Arm:
    where = f"arm {place}"
    if not isinstance(table, dict):
        raise ConfigError(f"[{where}] Expected a table [[arm]], got {table!r}.")
    options = dict(table)
    name, protocol = options.pop("name", None), options.pop("protocol", None)
    if not isinstance(name, str) or not isinstance(protocol, str):
        raise ConfigError(f"[{where}] Expected `name` and `protocol` as text.")
    try:
        require_name(name)
    except ConfigError as error:
        raise ConfigError(f"[{where}] {error}") from None
    return Arm(name=name, protocol=protocol, options=convert(protocol_named(protocol), options, where))


def protocol_named(name: str) -> type[ProtocolOptions]:
    """The options class registered under `name` in the entry-point group `securefl.protocols`."""
    found = {point.name: point for point in entry_points(group="securefl.protocols")}
    if name not in found:
        raise ConfigError(
            f"Unknown protocol {name!r}{near(name, found)}; known are {', '.join(sorted(found))}."
        )
    options: type[ProtocolOptions] = found[name].load()
    return options


def slug(name: str) -> str:
    """A name as a folder: lower case, words joined by hyphens."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def require_name(name: str) -> None:
    """Raises ConfigError for a name that cannot be a folder's, or that deceives its reader."""
    require_legible(name, "a name")
    if not 1 <= len(slug(name).encode()) <= _LONGEST_NAME:
        raise ConfigError(
            f"Expected a name with a letter or digit, of at most {_LONGEST_NAME} bytes, got {name[:80]!r}."
        )
