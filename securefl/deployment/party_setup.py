"""Builds a study for one party of a deployment: algorithm, plan, records, and the party itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import Algorithm
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState, ValueSpec
from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError, DataError
from securefl.core.formats import prefix
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.streams import own_stream
from securefl.data.dataset import labelled
from securefl.data.networks import arrays_of
from securefl.data.sides import HOLDOUT
from securefl.deployment.plan_file import PlanFile
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.computing import Records
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.linear.registry import scheme_of as linear_scheme_of
from securefl.linear.scheme import LinearScheme
from securefl.mechanisms.charges import Protection
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord
from securefl.study import split_key
from securefl.study.accounted import require_in_one_process
from securefl.study.composition import composition
from securefl.study.config import Arm, Study
from securefl.study.seeded import World
from securefl.study.split_key import Keeper
from securefl.study.world import build, scale, tested_on
from securefl.sums.registry import has_key_holder
from securefl.training.task import Problem


def work_of(study: Study, arm: Arm, world: World) -> bytes:
    """Digest of a study's text, an arm, a seed and the files of `files_of`, 32 bytes.

    Parties with equal digests run the same code from the same start.
    """
    files = sorted(files_of(world).items())
    parts = (study.text, arm.name, str(world.seed), *(f"{name} {digest}" for name, digest in files))
    # Each part has a digest of its own, so that no two lists of parts give the same bytes.
    inner = b"".join(hashlib.sha256(part.encode()).digest() for part in parts)
    return hashlib.sha256(prefix("work") + inner).digest()


def files_of(world: World) -> dict[str, str]:
    """Digests in hex of the initial `weights` and of the code of its own that the study names, by name.

    Of code, it is that of the file that the study names, and not of modules that the file imports.
    """
    bound = world.marks.bound
    return {name: bound[name] for name in bound if name == "weights" or name.endswith(_CODE)}


def in_words(name: str) -> str:
    """A file of `files_of` in words."""
    return "initial weights" if name == "weights" else f"code of the {name.removesuffix(_CODE)}"


_CODE: Final = "_code"


@dataclass(frozen=True)
class PartyStudy:
    """One arm of a study under one seed. Every party of a deployment builds it for itself."""

    study: Study
    arm: Arm
    world: World
    algorithm: Algorithm
    plan: Plan
    keeper: Keeper = field(default_factory=Keeper)

    @classmethod
    def of(cls, study: Study, arm: Arm, seed: int, keeper: Keeper | None = None) -> PartyStudy:
        """Build the study's world. Raises ConfigError if the study cannot run.

        keeper: the client's, with the key of its folder. By default the key is fresh, if the study needs one.
        """
        require_in_one_process(study)
        if keeper is None:
            keeper = Keeper(key=split_key.fresh() if split_key.needed(study) else None, dealt=True)
        world = build(study, seed, splits=keeper.splits(study, seed))
        return cls(study, arm, world, *composition(study, arm, world), keeper)

    @property
    def work(self) -> bytes:
        return work_of(self.study, self.arm, self.world)

    @cached_property
    def spec(self) -> Mapping[str, ValueSpec]:
        """The specs of the values that clients may contribute, by name."""
        return {contribution.spec.name: contribution.spec for contribution in self.algorithm.contributions}

    @property
    def bare(self) -> bool:
        """Whether a session of this study has hidden sums without noise."""
        return any(Protection(self.plan, spec).bare for spec in self.spec.values())

    @property
    def scores(self) -> LinearScheme | None:
        """The plan's scheme for linear queries; None if their answers are sent in the clear."""
        asks = 2 * self.study.study.rounds
        clients = self.world.problem.clients
        return linear_scheme_of(
            self.plan.scores, parameters=self.study.privacy.parameters, asks=asks, clients=clients
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The parties beside the clients: the server, and a key holder if the plan needs one."""
        holder = self.scores is not None or has_key_holder(self.plan)
        return (SERVER, KEY_HOLDER) if holder else (SERVER,)

    def key_holder(self, record: OwnRecord) -> KeyHolderParty:
        """The key holder of this study."""
        return KeyHolderParty(self.plan, self.spec, record, scores=self.scores)

    def client(
        self,
        number: int,
        own: OwnData,
        ledger: Ledger,
        journal: Journal,
        identity: Identity,
        session: bytes,
        kept: Mapping[int, ClientState],
        count_session: Callable[[bytes], str],
    ) -> ClientParty:
        """One client of this study in one session, with its own records and its own draws of training."""
        return ClientParty(
            self.plan,
            self.algorithm.contributions,
            ledger,
            journal,
            {number: own.records},
            rng=partial(own_stream, identity.training(session)),
            held=None if own.held is None else {number: own.held},
            scores=self.scores,
            kept=kept,
            enrolled={identity.name: identity},
            trainer=replace(self.study.runtime, workers=1).trainer(self.algorithm.contributions),
            count_session=count_session,
        )


def require_agreed(content: PlanFile, plan: Plan, world: World) -> None:
    """Raises ConfigError unless a study still gives the plan and files that the party's owner agreed to."""
    found = files_of(world)
    for name in sorted({*found, *content.files}):
        if (own := found.get(name)) != (before := content.files.get(name)):
            agreed, got = (f"SHA-256 {digest[:12]}" if digest else "none" for digest in (before, own))
            remedy = (
                "the file was changed. Bring it back, or agree"
                if before
                else "the study names it since, or nobody was asked then. Agree"
            )
            raise ConfigError(
                f"Expected the {in_words(name)} of party.toml, {agreed}, got {got}: {remedy} to the study "
                "again: securefl party init --again."
            )
    if plan == content.plan:
        return
    others = [name for name, own in plan.words().items() if own != content.plan.words()[name]]
    raise ConfigError(
        f"Expected the plan of party.toml from study.toml, got another {', '.join(others)}: one of the "
        "files was changed, "
        "or this release of securefl computes another plan. Check the study, and agree to it again: "
        "securefl party init --again."
    )


# Records ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnData:
    """A client's records. records: for training. held: held out for tests; None without a hold-out."""

    records: Records
    held: Records | None

    @property
    def digest(self) -> str:
        """SHA-256 over the records, in hex. The party notes it in its own folder, and never sends it."""
        found = hashlib.sha256(prefix("party/records"))
        for part in (*self.records, *(self.held or ())):
            found.update(f"{part.dtype.str}{part.shape}".encode())
            found.update(np.ascontiguousarray(part).data)
        return found.hexdigest()


def data_of(made: PartyStudy, number: int, records: str) -> OwnData:
    """A client's records: from its own file, or those that the study deals to it.

    records: the file's path; empty if the study deals them.
    Raises ConfigError if the study has no client of this number, and DataError if the file does not fit.
    """
    world = made.world
    if number >= len(world.records):
        raise ConfigError(
            f"Expected a client from 0 to {len(world.records) - 1}, as the study has them, got {number}."
        )
    if not records:
        return OwnData(world.records[number], None if world.held is None else world.held[number])
    study = made.study
    x, y = _own(Path(records), world.problem, world.records[number], claimed=study.claims)
    schema = world.schema
    # An array's targets are in units, as its records are. Those of a table are given as the model reads them.
    if world.problem.kind == "regression" and schema.columns is None and schema.targets:
        y = schema.encode_targets(y, records, lenient=study.claims)
    scaled = scale(study, x)
    if world.held is None:
        return OwnData((scaled, y), None)
    # Split by the records as they are in the file, as the study splits those that it deals.
    splits = made.keeper.splits(study, world.seed)
    out = splits.holdout.apart(x, y, study.data.holdout, HOLDOUT)
    held = out & tested_on(study, x, y, splits.choosing)
    return OwnData((scaled[~out], y[~out]), (scaled[held], y[held]))


def _own(path: Path, problem: Problem, like: Records, *, claimed: bool) -> Records:
    """The records of a file, in the study's types. Raises DataError if it does not fit.

    claimed: whether an epsilon is claimed. Then an error would tell that one record is there, so a record
    with an entry that is no number, or of an unknown label, stays: training leaves it out.
    """
    x, y = arrays_of(path, ("x", "y")).values()
    if len(x) != len(y):
        raise DataError(f"{path}: expected as many targets as records, got {len(y)} and {len(x)}.")
    x, y = _fitting(path, "x", x, like[0], claimed), _fitting(path, "y", y, like[1], claimed)
    if not claimed and not labelled(y, problem.kind, problem.outputs).all():
        known = f"from 0 to {problem.outputs - 1}" if problem.kind == "classification" else "of 0 and 1"
        raise DataError(
            f"{path}: expected labels {known}, as the study has them, got some from {y.min():g} to "
            f"{y.max():g}. Write each as its place among the study's classes."
        )
    return x, y


def _fitting(path: Path, what: str, found: NDArray[Any], like: NDArray[Any], claimed: bool) -> NDArray[Any]:
    """The array in the study's dtype. Raises DataError for another shape, an unsafe cast, nan or infinity."""
    if claimed and like.dtype.kind == "i" and found.dtype.kind == "f":
        # One record without a number makes floats of a whole file.
        whole = (np.abs(found) < 2.0**62) & (found == np.trunc(found))
        found = np.where(whole, found, -1).astype(np.int64)
    safe = np.can_cast(found.dtype, like.dtype, casting="same_kind")
    if found.shape[1:] != like.shape[1:] or found.ndim != like.ndim or not safe:
        raise DataError(
            f"{path}: expected {what} of shape (records, *{like.shape[1:]}) as {like.dtype}, as the study's "
            f"model reads it, got {found.shape} as {found.dtype}."
        )
    with np.errstate(over="ignore"):  # too large for the study's type: infinite, as it would be read
        cast = np.ascontiguousarray(found, dtype=like.dtype)
    if not claimed and not np.isfinite(cast).all():
        raise DataError(f"{path}: expected finite entries of {what}, got nan or infinity. Fill or drop them.")
    return cast
