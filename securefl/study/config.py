"""Reads a study from TOML, strictly. Errors name the file, the key, the value and the nearest valid name."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isnan
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

from torch import nn

from securefl.algorithm.clients import Contribution
from securefl.core.errors import ConfigError, DataError
from securefl.core.ranges import Count, Fraction, Range, Ranged, refused
from securefl.core.reading import Mistakes, beneath, convert, near
from securefl.core.text_safety import require_legible
from securefl.data import NAMES, Corruption
from securefl.engine.network import Faults
from securefl.storage import owned, processes
from securefl.storage.files import folder_at, write
from securefl.storage.own_code import CALLER, Namer, names_code
from securefl.storage.private_folder import PRIVATE
from securefl.storage.processes import MOST_WORKERS
from securefl.storage.texts import kept, read_text, toml
from securefl.study.arm_options import ProtocolOptions, kind_of, name_of
from securefl.study.cost import PresetName
from securefl.study.data_section import DataSection, require_source
from securefl.study.privacy import DPSGDSection, PrivacySection, with_one_epsilon
from securefl.training import LocalTraining, ModelConfig
from securefl.training.cohorts import Batched, slots_for
from securefl.training.devices import Wanted
from securefl.training.jobs import TrainedContribution, Trainer
from securefl.training.own_models import OwnModelSection, section_of
from securefl.training.parallel import Forked
from securefl.training.private_steps import DPSGD
from securefl.training.run_jobs import one_by_one

BROUGHT: Final = "brought.txt"
"""The file of a run folder that names the objects which a caller in Python handed over."""
HOME: Final = "home.txt"
"""The file of a run folder that names the folder of its study's own files and modules."""
_LONGEST_NAME = 200
"""The longest name in bytes. Folders have these names, and file systems allow 255 bytes."""


@dataclass(frozen=True, kw_only=True)
class StudySection(Ranged):
    """The section [study].

    name: for people. rounds: the number of rounds of each arm. seeds: every arm runs once under each seed.
    target: the accuracy to be reached.
    evaluate_every: models are tested in rounds whose number this divides, and in the last one.
    patience: an arm ends when this many tests in a row, on the server's own records, were no better than its
    best one. No client's record decides it.
    """

    name: str = field(metadata={"words": str})
    rounds: Annotated[int, Range("[1, 10^6]")]
    seeds: tuple[int, ...] = (0,)
    target: Fraction | None = None
    evaluate_every: Count = 1
    patience: Count | None = None

    def refusals(self) -> Iterator[str]:
        yield from refused(require_name, self.name)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            yield f"Expected seeds with at least one seed, each once, got {list(self.seeds)}."
        if 1 <= self.rounds < self.evaluate_every:
            yield (
                f"Expected evaluate_every from 1 to {self.rounds}, the number of rounds, got "
                f"{self.evaluate_every}."
            )

    def evaluates(self, number: int) -> bool:
        """Whether models are tested after this round."""
        return number % self.evaluate_every == 0 or number == self.rounds

    def level(self, tested: Sequence[float]) -> bool:
        """Whether an arm's last `patience` tests were no better than its best one. tested: its accuracies."""
        if self.patience is None:
            return False
        known = [-inf if isnan(accuracy) else accuracy for accuracy in tested]
        return len(known) > self.patience and max(known[: -self.patience]) >= max(known[-self.patience :])


@dataclass(frozen=True, kw_only=True)
class CostSection:
    """The section [cost]: the model of time and energy.

    preset: the constants of a published task. real_bytes: whether messages cost their real bytes, in place of
    the preset's constant model size.
    """

    preset: PresetName = "emnist_v2"
    real_bytes: bool = True


@dataclass(frozen=True, kw_only=True)
class RuntimeSection(Ranged):
    """The section [runtime]: speed alone. It changes no ledger's entry and no message's meaning.

    training: "batched" trains several clients in one computation, if the model has dense layers alone;
    "sequential" trains each by itself. Both draw the same batches and noise. Sums differ in last bits.
    workers: processes that share arms, seeds and local training; by default one for each processor.
    device: the device of models. "auto" takes a GPU if one can be used, and else the CPU.
    """

    training: Literal["batched", "sequential"] = "batched"
    workers: Annotated[int, Range(f"[1, {MOST_WORKERS}]")] | None = None
    device: Wanted = "auto"

    @property
    def here(self) -> RuntimeSection:
        """This section for a run in one process."""
        return replace(self, workers=1)

    @property
    def processes(self) -> int:
        """The number of worker processes."""
        if not processes.can_fork():
            return 1
        return self.workers or processes.processors()

    def lanes(self, pairs: int) -> int:
        """The number of a study's pairs of arm and seed that run side by side."""
        return min(self.processes, pairs)

    def lane(self, lanes: int) -> RuntimeSection:
        """This section for one of several runs that run side by side and share the workers."""
        return replace(self, workers=max(1, self.processes // lanes))

    def trainer(self, contributions: Sequence[Contribution]) -> Trainer:
        """The trainer of a run with these contributions.

        Each run needs its own trainer, which remembers the models that it can train in batches.
        """
        alone = Forked(self.processes) if self.processes > 1 else one_by_one
        if self.training == "sequential":
            return alone
        cohorts = (
            contribution.spec.cohort
            for contribution in contributions
            if isinstance(contribution, TrainedContribution)
        )
        return Batched(alone, slots_for(max(cohorts, default=0)))


@dataclass(frozen=True, kw_only=True)
class MeasuresSection(Ranged):
    """The section [measures]: the models that an observer tests, and those that it trains for comparison.

    pooled: a model on the records of all clients together, without noise. alone: a model of each client on
    its own records, without noise. By default a run has both, and a cell of a sweep neither.
    passes: over the records; by default rounds x epochs, but at least 5 and at most 20.
    at: the part of a personal model that clients share, when the model is tested or exported. "averaged": as
    the server sent it last. "own": as the client trained it last, before averaging; a client that has not
    trained yet has the averaged one. Where all clients have one model, local accuracy alone is of trained
    ones. No epsilon covers the figures of clients' models: they stay in private/.
    """

    pooled: bool | None = None
    alone: bool | None = None
    passes: Annotated[int, Range("[1, 10^4]")] | None = None
    at: Literal["own", "averaged"] = "averaged"

    def over(self, rounds: int, local: LocalTraining) -> int:
        """The passes over the records in a study of so many rounds."""
        return self.passes or min(20, max(5, rounds * (local.epochs or 1)))


@dataclass(frozen=True, kw_only=True)
class ArmSection:
    """The keys of an [[arm]] that are not its protocol's options.

    name: tables and plots show the arm under it. protocol: the protocol that the arm runs.
    accepts_kept_state: as in `Plan`: the server may open single inputs of this arm's hidden sums.
    preset: a setting that the protocol's class has in `presets`, such as "authors": keys of an arm, also of
    its `local`. The arm's own keys come before them.
    local: keys of [local] that this arm has otherwise, such as `local = { learning_rate = 0.1 }`. The others
    are those of the section; `epochs` takes the place of `steps` there, and `steps` that of `epochs`.
    """

    name: str
    protocol: str
    accepts_kept_state: bool = False
    preset: str | None = None
    local: LocalTraining | None = None

    def __post_init__(self) -> None:
        require_name(self.name)


@dataclass(frozen=True, kw_only=True)
class Arm(ArmSection):
    """One protocol with its options."""

    options: ProtocolOptions


@dataclass(frozen=True, kw_only=True, eq=False)
class Brought:
    """Objects that a caller in Python hands to a study, in place of names in its text.

    data: records in place of `[data] source`: arrays, a Dataset, one of them per client, or data sets of
    torch or Hugging Face. model: a function that makes the model, in place of `[model] kind`. protocol: that
    of the arms that name none (see `arm_options`).
    """

    data: object | None = None
    model: Callable[..., nn.Module] | None = None
    protocol: Any = None

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same objects. By identity, since `==` on arrays compares their entries."""
        return isinstance(other, Brought) and self._identities == other._identities

    def __hash__(self) -> int:
        return hash(self._identities)

    @property
    def _identities(self) -> tuple[int, ...]:
        return tuple(map(id, vars(self).values()))


@dataclass(frozen=True, kw_only=True)
class LossSection(Ranged):
    """The section [loss]: another loss of the training than cross-entropy or mean squared error.

    class_weights: a factor of each class's cross-entropy, in the order of `classes`. Of several labels: of
    each label's positives, in the order of `target`. They are public, so they must not be counted from
    records under a finite epsilon. function: `module:name` of a function of the study's own,
    (outputs (n, outputs), targets) -> each record's loss (n,). The mean over a mini-batch is minimised, and
    with [dpsgd] a record's gradient is clipped with its weight.
    """

    class_weights: tuple[Annotated[float, Range("(0, 10^6]")], ...] = ()
    function: str | None = None

    def refusals(self) -> Iterator[str]:
        if bool(self.class_weights) == (self.function is not None):
            yield (
                "Expected one of `class_weights` and `function`, got "
                f"{'both' if self.class_weights else 'neither'}. Keep one; a function may weigh by itself."
            )
        if self.function is not None and not names_code(self.function):
            yield f"Expected `function` as `module:name`, got {self.function[:80]!r}. Name a function so."


@dataclass(frozen=True, kw_only=True)
class Study:
    """A whole study.

    text: the TOML that it was read from. file: its file's name in errors; empty for a text without a file.
    home: the folder of its relative paths and its own modules; None for a packaged one, which names installed
    packages alone. brought: objects from Python in place of names in the text. namer: who names its
    code.
    """

    study: StudySection
    data: DataSection
    model: ModelConfig | OwnModelSection
    local: LocalTraining
    privacy: PrivacySection
    arms: tuple[Arm, ...]
    corruption: Corruption = field(default_factory=Corruption)
    network: Faults = field(default_factory=Faults)
    cost: CostSection = field(default_factory=CostSection)
    dpsgd: DPSGDSection | None = None
    runtime: RuntimeSection = field(default_factory=RuntimeSection)
    measures: MeasuresSection = field(default_factory=MeasuresSection)
    loss: LossSection | None = None
    text: str = ""
    file: str = ""
    home: Path | None = None
    brought: Brought = field(default_factory=Brought)
    namer: Namer = field(default=CALLER, compare=False)

    @property
    def digest(self) -> str:
        """The SHA-256 of its text, in hex, by which files of a run name their study."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def noised(self) -> bool:
        """Whether the study asks for noise, even if its epsilon is infinite."""
        return self.dpsgd is not None or self.privacy.epsilon is not None

    @property
    def claims(self) -> bool:
        """Whether a run of the study may claim a finite epsilon."""
        return self.dpsgd is not None or (self.privacy.epsilon or inf) < inf

    @property
    def tests_on_the_claimed(self) -> bool:
        """Whether test records may be a share of a person's own, over which the study claims an epsilon.

        None covers these, so no exit code depends on an accuracy then.
        """
        return self.claims and self.data.source not in NAMES

    @property
    def private(self) -> DPSGD | None:
        """The private training, if the study asks for it. If its noise follows from a target, see
        `DPSGDSection.training`."""
        return None if self.dpsgd is None else self.dpsgd.training

    @property
    def packaged(self) -> bool:
        """Whether its records are a packaged data set's."""
        return self.brought.data is None and self.data.packaged

    @property
    def shares(self) -> bool:
        """Whether a part of the clients' own records may become the server's test part."""
        return not self.packaged and self.data.test is None and not self.data.test_clients

    @property
    def dealt_clients(self) -> bool:
        """Whether it protects clients that it makes itself, by dealing records to them: no people's own."""
        return self.privacy.unit == "client" and self.data.partition.kind != "natural"

    @property
    def pairs(self) -> list[tuple[Arm, int]]:
        """Each arm under each seed, seed by seed."""
        return [(arm, seed) for seed in self.study.seeds for arm in self.arms]

    def arm_of(self, name: str | None) -> Arm:
        """The arm of this name, in which capitals and signs do not count; for None the only arm.

        Raises ConfigError unless there is one.
        """
        names = [arm.name for arm in self.arms]
        # No two arms of a study have the same slug.
        found = [arm for arm in self.arms if name is None or slug(arm.name) == slug(name)]
        if len(found) != 1:
            got = "none" if name is None else f"{name!r}{near(name, names)}"
            raise ConfigError(f"Expected the name of an arm, which of {', '.join(names)}, got {got}.")
        return found[0]

    def seed_of(self, seed: int | None) -> int:
        """This seed, or the first one for None. Raises ConfigError if the study has no such seed."""
        seeds = self.study.seeds
        if seed is not None and seed not in seeds:
            raise ConfigError(f"Expected a seed among {', '.join(map(str, seeds))}, got {seed}.")
        return seeds[0] if seed is None else seed


_SECTIONS: Mapping[str, type[Any]] = {
    name: next(iter(get_args(hint)), hint)
    for name, hint in get_type_hints(Study).items()
    if name not in ("arms", "text", "file", "home", "brought", "namer")
}
_NEEDED: Final = ("study", "data", "model", "local", "privacy", "arm")
_HOMES: Final = {
    "protocol": "[[arm]]",
    "fraction": "[[arm]]",
    "sessions": "no section: the owner of each deployed client agrees to a number of sessions without noise, "
    "by securefl party init --sessions",
    **{
        key: " or ".join(f"[{name}]" for name, kind in _SECTIONS.items() if key in kind.__dataclass_fields__)
        for own in _SECTIONS.values()
        for key in own.__dataclass_fields__
    },
}
"""The sections that have a key, for errors."""
_ELSEWHERE: Final = {**_HOMES, "fraction": "an [[arm]] whose protocol draws clients"}
"""The same for a key of an arm."""


def read(path: Path, trusted: Sequence[Path] = ()) -> Study:
    """The study in a TOML file. trusted: the paths of --trust-code.

    Raises ConfigError if a part of it cannot be used as written, or the note of its home is not ours.
    """
    if (path.parent / PRIVATE / "arms").is_dir():  # a run goes on from the study in its folder
        return of_folder(path, trusted)
    text = read_text(path)
    try:
        home, namer = origin_of(path, trusted)
        return replace(parse(text, home=home, namer=namer), file=str(path))
    except ConfigError as error:
        raise beneath(f"{path}: ", error) from None


def of_folder(path: Path, trusted: Sequence[Path] = (), brought: Brought | None = None) -> Study:
    """The study that a folder of securefl keeps in this file. Raises ConfigError as `read` does.

    trusted: the paths of --trust-code. brought: a caller's objects from Python (see `Study`), by default
    those of `brought_of`.
    """
    text, (home, namer) = read_text(path), origin_of(path, trusted)
    brought = brought_of(path.parent) if brought is None or brought == Brought() else brought
    with kept(path):
        return replace(parse(text, home=home, brought=brought, namer=namer), file=str(path))


def parse(
    text: str, *, home: Path | None = None, brought: Brought | None = None, namer: Namer = CALLER
) -> Study:
    """The study in a TOML text. home, brought, namer: see `Study`. Raises ConfigError as `read` does."""
    table = toml(text)
    brought = brought or Brought()
    if brought.model is not None:
        table.setdefault("model", {})
    if brought.data is not None:
        table.setdefault("data", {})
    sections, arms, mistakes = dict[str, Any](), tuple[Arm, ...](), Mistakes()
    # In the order of the text, in which its author meets the mistakes.
    for name, own in with_one_epsilon(table).items():
        with mistakes.noted():
            if name == "arm":
                arms = _arms(own, table.get("local"), home, namer, brought.protocol)
            elif name in _SECTIONS:
                kind = _SECTIONS[name]
                if name == "model":
                    kind, own = section_of(own, brought=brought.model is not None)
                sections[name] = convert(kind, own, name, _HOMES)
                if name == "data" and brought.data is None:
                    require_source(sections[name], home)
            else:
                known = (*_SECTIONS, "arm")
                more = near(name, [own for own in known if own not in table]) or near(name, known)
                raise ConfigError(f"Unknown section [{name}]{more}; known are {', '.join(known)}.")
    # A section is not missing if a hint at a misspelt one names it.
    hints = " ".join(mistakes.said)
    needed = [name for name in _NEEDED if name not in table and f"mean `{name}`?" not in hints]
    if missing := ["[[arm]]" if name == "arm" else f"[{name}]" for name in needed]:
        mistakes.said.append(
            f"Missing section {', '.join(missing)}. Add it; `securefl studies demo` prints a study with "
            "every needed one."
        )
    mistakes.require_none()
    _require_one_target(sections["privacy"], sections.get("dpsgd"))
    if "dpsgd" in sections:
        _require_no_training(arms, sections["local"])
    return Study(**sections, arms=arms, text=text, home=home, brought=brought, namer=namer)


def _require_no_training(arms: Sequence[Arm], local: LocalTraining) -> None:
    """Raises ConfigError for an arm with training of its own beside [dpsgd], which trains all arms."""
    for arm in arms:
        if arm.local is None or arm.local == replace(
            local,
            update_bound=arm.local.update_bound,
            bound_quantile=arm.local.bound_quantile,
            buffers_bound=arm.local.buffers_bound,
        ):
            continue
        got, remedy = "settings of training", "Set them under [dpsgd], or leave [dpsgd] out"
        if "local" in getattr(arm.options, "presets", {}).get(arm.preset, {}):
            got += f", which the preset {arm.preset!r} sets"
            remedy = "Leave [dpsgd] out, or the preset if this protocol trains under [dpsgd]"
        raise ConfigError(
            f"{place_of(arm)} Expected bounds alone in `local` beside [dpsgd], which says how every arm "
            f"trains, got {got}. {remedy}."
        )


def _require_one_target(privacy: PrivacySection, training: DPSGDSection | None) -> None:
    """Raises ConfigError for a target beside another epsilon, or a smaller budget, in [privacy]."""
    target = None if training is None else training.epsilon
    if target is None:
        return
    if privacy.epsilon is not None and privacy.epsilon != target:
        raise ConfigError(
            f"[dpsgd] Expected epsilon = {privacy.epsilon:g}, that of [privacy], got {target:g}: both are "
            "the epsilon of all that a client releases in a run, training included. Write it once. To fix "
            "the part of training, give `noise_multiplier` in its place."
        )
    if privacy.budget < target:
        raise ConfigError(
            f"[dpsgd] Expected epsilon of at most {privacy.budget:g}, the `budget` in [privacy], got "
            f"{target:g}: clients would stop before the last round. Ask for less, or raise the budget."
        )


def _arms(tables: Any, local: Any, *read_with: Any) -> tuple[Arm, ...]:
    """local: the table [local]. read_with: home, namer and protocol of the study, as for `kind_of`."""
    if not isinstance(tables, list) or not tables:
        raise ConfigError(
            f"Expected at least one [[arm]] in double brackets, got {'[arm]' if tables else 'none'}. "
            "Write [[arm]]."
        )
    arms, mistakes = list[Arm](), Mistakes()
    for place, table in enumerate(tables, start=1):
        with mistakes.noted():
            arms.append(_arm(table, local, f"arm {place}", *read_with))
    if read_with[-1] is not None and all(isinstance(table, dict) and "protocol" in table for table in tables):
        mistakes.said.append(
            "[[arm]] Expected an arm without `protocol`, which the one from Python is for, got none."
        )
    # Compared as folder names: names that differ in capitals or signs alone would share a folder.
    if len({slug(arm.name) for arm in arms}) < len(arms):
        mistakes.said.append(
            f"[[arm]] Expected arms with different names, got {[arm.name for arm in arms]}: capitals and "
            "signs do not count. Rename one."
        )
    mistakes.require_none()
    return tuple(arms)


def _arm(table: Any, local: Any, where: str, *read_with: Any) -> Arm:
    if not isinstance(table, dict):
        raise ConfigError(f"[{where}] Expected a table [[arm]], got {table!r}.")
    kind: Any = None
    table, mistakes, keys = {"protocol": "", **table}, Mistakes(), ArmSection.__dataclass_fields__
    with mistakes.noted():
        table["protocol"], kind = kind_of(table["protocol"], where, *read_with)
        # Taken out first: what is told of it here is not told again of its type.
        table = _expanded(table, table.pop("preset", None), kind, where)
    options = getattr(kind, "__dataclass_fields__", {})
    # Misspelt ones too, where the protocol's own are known.
    own = {
        key: table[key]
        for key in table
        if key in keys or (not isinstance(kind, partial) and key not in options and near(key, keys))
    }
    if isinstance(changed := own.get("local"), dict) and isinstance(local, dict):
        own["local"] = _over(local, changed)
    found = dict[str, Any]()
    with mistakes.noted():
        found |= vars(convert(ArmSection, own, where))
    if kind is not None:
        with mistakes.noted():
            rest = {key: table[key] for key in table if key not in own}
            found["options"] = (
                convert(kind, rest, where, _ELSEWHERE) if isinstance(kind, type) else kind(keys=rest)
            )
    mistakes.require_none()
    return Arm(**found)


def _expanded(table: Mapping[str, Any], name: Any, kind: Any, where: str) -> dict[str, Any]:
    """The table of an arm with the keys of the preset of this name. Raises ConfigError for an unknown one."""
    if name is None:
        return {**table}
    known: Mapping[str, Mapping[str, Any]] = getattr(kind, "presets", {})
    if not isinstance(name, str) or name not in known:
        remedy = f"Expected one of {', '.join(known)}" if known else "Expected no preset of this protocol"
        raise ConfigError(
            f"[{where}] `preset`: {remedy}, got {name!r}{near(str(name), known)}. Leave it out and set the "
            "options themselves."
        )
    both = [own["local"] for own in (known[name], table) if isinstance(own.get("local"), dict)]
    shared = {"local": _over(*both)} if len(both) == 2 else {}
    return {**known[name], **table, **shared, "preset": name}


def _over(below: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of [local] with changes. `epochs` takes the place of `steps`, and `steps` that of `epochs`."""
    lengths = {"epochs", "steps"}
    shared = {key: below[key] for key in below if key not in lengths or not lengths & {*changes}}
    return {**shared, **changes}


def origin_of(file: Path, trusted: Sequence[Path] = ()) -> tuple[Path, Namer]:
    """The folder of a study's or sweep's relative paths and own modules, by its file, and who names its code.

    It is the file's own folder. A run folder keeps a copy of the file, and a note of the original folder. The
    file names the code, and so does the note.
    Raises ConfigError for a note that this program did not write in this folder, for its owner alone, unless
    it is in one of the `trusted` paths.
    """
    noted = file.parent / HOME
    if not os.path.lexists(noted):
        return file.parent, Namer(files=(file,), trusted=tuple(trusted))
    why = _planted(noted)
    owned.allowed(why, noted, trusted, what=f"the folder that {HOME} names")
    home = Path(read_text(noted).partition("\n")[0])
    if not home.is_absolute():
        raise ConfigError(
            f"{noted}: expected an absolute path, that of the study's own folder, got {str(home)!r}."
        )
    return home, Namer(files=(file, noted), trusted=tuple(trusted), known=(why,) if why else ())


def _planted(noted: Path) -> str:
    """Why a note of the study's folder may not be this program's, or not for this folder; "" if it is."""
    found, out = noted.lstat(), shlex.quote(str(noted.parent))
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in owned.ours() or not stat.S_ISREG(found.st_mode):
        return (
            f"Expected {noted} as a file of user {owned.names(owned.ours())}, got another of user "
            f"{found.st_uid}, who may have put it there. Remove it, or move the study to a folder of its own."
        )
    if mode & 0o077:
        return (
            f"Expected {noted} for its owner alone, got mode {mode:04o}: others may have written it. If they "
            f"did not: chmod 600 {shlex.quote(str(noted))}"
        )
    if read_text(noted).partition("\n")[2] != _made_in(noted.parent):
        return (
            f"Expected {noted} as securefl wrote it in this folder, got a note of another one: the folder "
            "was copied, unpacked or restored, or the file was made by hand. Give it the study's own file "
            f"again (run or sweep it with --out {out}; a party: securefl party init {out} STUDY --again), "
            f"or remove {HOME} if the study's files are here."
        )
    return ""


def _made_in(folder: Path) -> str:
    # A folder that comes in an archive gets a number that its sender does not know.
    return f"made in folder {folder.stat().st_ino}\n"


def note_home(folder: Path, home: Path | None) -> None:
    """Note in a run folder the folder of its study's own files. Writes nothing if `home` is None."""
    if home is None or home.resolve() == folder.resolve():
        return
    noted, found = folder_at(folder) / HOME, f"{home.resolve()}\n{_made_in(folder)}"
    if not noted.is_file() or _planted(noted) or read_text(noted) != found:
        write(noted, found, secret=True)


def note_brought(folder: Path, brought: Brought) -> None:
    """Note in a run folder what the caller handed over in Python. Writes nothing if that is nothing."""
    names = {key: name_of(value) for key, value in vars(brought).items() if value is not None}
    if names and not (folder / BROUGHT).exists():
        write(folder_at(folder) / BROUGHT, "".join(f"{key} {name}\n" for key, name in names.items()))


def brought_of(folder: Path) -> Brought:
    """The objects from Python of the study in a run folder, for readers, which call none of them.

    If one is called, it raises ConfigError: the folder has its name alone.
    Raises DataError for a damaged note.
    """
    if not (folder / BROUGHT).exists():
        return Brought()
    names = dict(line.partition(" ")[::2] for line in read_text(folder / BROUGHT).splitlines())
    if unknown := names.keys() - vars(Brought()).keys():
        raise DataError(f"{folder / BROUGHT}: expected data, model or protocol, got {sorted(unknown)!r:.80}.")
    return Brought(**{key: _not_here(key, name, folder) for key, name in names.items()})


def _not_here(key: str, name: str, folder: Path) -> Callable[..., Any]:
    def absent(*_: Any, **__: Any) -> Any:
        raise ConfigError(
            f"Expected the `{key}` that was handed over in Python when {folder} began ({name}), got a "
            "command without it. From Python, call securefl.run or run_sweep again with it and "
            f"out={str(folder)!r}: that goes on, or writes the report again, and `.export` of its result "
            "writes the model."
        )

    absent.__module__, _, absent.__qualname__ = name.partition(":")
    return absent


@contextmanager
def placed(study: Study, where: str) -> Iterator[None]:
    """A context that puts the study's file and this place, such as "[data]", before a ConfigError's message.

    If a message begins with a section, it keeps that one. If it passed such a context before, it stays.
    """
    try:
        yield
    except ConfigError as error:
        if error.placed:
            raise
        text = error if str(error).startswith("[") else beneath(f"{where} ", error)
        mended = beneath(f"{study.file}: " if study.file else "", text)
        mended.placed = True
        raise mended from None


def place_of(arm: Arm) -> str:
    """The place of an arm in its study's file, for errors."""
    return f"[[arm]] {arm.name}:"


def slug(name: str) -> str:
    """The folder name of a name: lower case, words joined by hyphens."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def require_name(name: str) -> None:
    """Raises ConfigError if a name cannot be a folder's, or has characters that mislead its reader."""
    require_legible(name, "a name")
    if not 1 <= len(slug(name).encode()) <= _LONGEST_NAME:
        raise ConfigError(
            f"Expected a name with a letter or digit, of at most {_LONGEST_NAME} bytes, got {name[:80]!r}."
        )
