"""Builds the world of one seed: deals records to clients, corrupts some, computes features, draws devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError, DataError
from securefl.core.streams import public_seed, stream
from securefl.data import Corruption, Dataset, Split
from securefl.data.corruptions import unrelated
from securefl.data.dataset import whole_numbers
from securefl.data.sides import HOLDOUT, VALIDATION, Sides
from securefl.data.sources import PUBLISHED
from securefl.engine.party.computing import Records
from securefl.study import cost
from securefl.study.config import Study, placed
from securefl.study.cost import PRESETS
from securefl.study.own_code import Told, architecture, declared_loss, featured, marks_of_deal, protocols
from securefl.study.own_code import records as own_records
from securefl.study.seeded import Digests, World
from securefl.study.split_key import Keeper, Splits
from securefl.training.devices import Hardware, chosen
from securefl.training.models import ModelConfig
from securefl.training.own_models import OwnModel
from securefl.training.task import Problem


def build(
    study: Study,
    seed: int,
    hardware: Hardware | None = None,
    tell: Told = lambda done, total: None,
    splits: Splits | None = None,
) -> World:
    """Load, split and corrupt the data of one seed, compute features, and draw its devices.

    hardware: the device that computes models, by default the one that the study asks for.
    tell: called with the number of records whose features are computed, and of all records.
    splits: decides which records are tested on. By default they are those of a study that is only inspected,
    with no key on disk (see `Keeper`).
    Raises ConfigError if the study cannot use its data or model, and DataError if data is missing or damaged.
    """
    with placed(study, "[runtime]"):
        hardware = hardware or chosen(study.runtime.device)
    with placed(study, "[data]"):
        return _built(study, seed, hardware, tell, splits or Keeper().splits(study, seed))


Planned = Callable[[Sequence[ValueSpec]], Plan]


def of_study(world: World, study: Study) -> World:
    """The world of another study with the same data, model and claims, on the CPU.

    Studies of a sweep whose cells differ in their training, protocol or noise share a world. So does a worker
    with the process that sent it the world.
    """
    old = world.problem
    problem = replace(
        old,
        local=study.local,
        private=study.private,
        hardware=Hardware(),
        planned=_planned(study, old.records, old.clients, old.leaving),
        rounds=study.study.rounds,
    )
    return replace(world, problem=problem)


def _planned(study: Study, records: int, clients: int, leaving: bool) -> Planned:
    def planned(sent: Sequence[ValueSpec]) -> Plan:
        with placed(study, "[privacy]"):
            return study.privacy.plan(
                study.study.rounds, sent, records=records, clients=clients, leaving=leaving
            )

    return planned


def _built(study: Study, seed: int, hardware: Hardware, tell: Told, splits: Splits) -> World:
    read = own_records(study, seed, splits.test)
    split, leaving = _drawn(study, read.split, seed), read.leaving
    clients, apart = study.data.clients, study.data.test_clients
    if clients is not None and clients + apart > len(split.train):
        wanted = (
            f"clients <= {len(split.train) - apart}"
            if apart
            else f"clients <= {len(split.train)}, the number of records"
        )
        if study.claims and not study.packaged:
            wanted = "a record for each client"
        raise ConfigError(f"Expected {wanted}, got {clients}. Take fewer `clients`, or give more records.")
    other = unrelated(study.corruption, split.train, stream(seed, "irrelevant"))
    _require_public(study, split.train, other)
    _require_fitting(study, split.train)
    # Each step draws from a stream of its own, named by its purpose: a change to one step changes no other.
    dealt = None if clients is None else clients + apart
    parts = study.data.partition.split(split.train, dealt, stream(seed, "partition"))
    marks = read.marks | marks_of_deal(study, read, split.train, parts)
    if len(parts) <= apart:
        raise ConfigError(f"Expected test_clients < {len(parts)}, the number of clients, got {apart}.")
    if apart:
        parts, tests = _apart(parts, apart, stream(seed, "test clients"))
        split = replace(split, test=split.train.take(tests))
    clients = len(parts)
    whole = _of_all(study, split.train, clients + apart)
    quality = study.corruption.assign(clients, stream(seed, "quality"))
    split = replace(split, test=_tested(study, split.test, splits.choosing))
    records, out, tested = [], [], []
    for client, (part, kind) in enumerate(zip(parts, quality, strict=True)):
        dealt_to = split.train.take(part)
        own = study.corruption.apply(dealt_to, kind, stream(seed, "corrupt", client), other)
        records.append((own.x, own.y))
        # Split by the records as loaded: corruption, and last bits of features, may depend on their places.
        if study.data.holdout:
            out.append(splits.holdout.apart(dealt_to.x, dealt_to.y, study.data.holdout, HOLDOUT))
        tested.append(tested_on(study, dealt_to.x, dealt_to.y, splits.choosing))
    scaled = [(scale(study, x), y) for x, y in records]
    made = featured(study, scaled, replace(split.test, x=scale(study, split.test.x)), tell)
    # Of clients that are set apart, some records may be unusable.
    fits = np.flatnonzero(made.test.usable)
    test = made.test.take(fits)
    kept, held = _parted(made.records, out or None, tested)
    shares = _shares(study, test, kept, held)
    owned = sum(map(len, parts)) if apart else len(split.train)
    owned = _declared(study, owned, clients, clients / max(1, whole), leaving)
    # The code below reads the shape and type of a record, and no record.
    train = replace(split.train.take(slice(0)), x=np.empty((0, *made.test.shape), split.train.x.dtype))
    outputs, model_seed = train.classes or train.y.shape[1], public_seed(seed, "model")
    with placed(study, "[loss]"):
        loss, of_loss = declared_loss(study, train)
    with placed(study, "[model]"):
        model, of_model = architecture(study, train, outputs, model_seed, loss)
    if model.reads_text:
        name, claimed = train.name, study.claims

        def codes_of(part: Sequence[Records], words: str) -> Sequence[Records]:
            return [
                whole_numbers(x, y, f"{name}, {words} records of client {client}", lenient=claimed)
                for client, (x, y) in enumerate(part)
            ]

        kept, held = codes_of(kept, "training"), held and codes_of(held, "held-out")
        coded_x, coded_y = whole_numbers(test.x, test.y, f"{name}, test part", lenient=test.lenient)
        test = replace(test, x=coded_x, y=coded_y)
        fits, test = fits[test.usable], test.take(np.flatnonzero(test.usable))
    problem = Problem(
        model=model,
        local=study.local,
        kind=train.task,
        shape=train.shape,
        outputs=outputs,
        clients=clients,
        records=owned,
        leaving=leaving,
        server_x=test.x,
        server_y=test.y,
        seed=model_seed,
        private=study.private,
        hardware=hardware,
        planned=_planned(study, owned, clients, leaving),
        rounds=study.study.rounds,
        declared_loss=loss,
        tested_at=study.measures.at,
    )
    if not study.claims and isinstance(model, OwnModel) and problem.codes is not None:
        all_x = [(f"client {client}", x) for part in (kept, held or ()) for client, (x, _) in enumerate(part)]
        _require_codes([*all_x, ("the test part", test.x)], train.name, problem.codes)
    preset, split_by = PRESETS[study.cost.preset], {"split": splits.bound} if splits.bound else {}
    return World(
        seed=seed,
        problem=problem,
        records=kept,
        quality=quality,
        cost_model=_cost(study, preset, train.shape, model.reads_text),
        devices=preset.draw(clients, stream(seed, "devices")),
        held=held,
        unscaled_x=split.test.x[fits] if study.data.scaling is not None else None,
        schema=replace(read.schema, features=made.network, scaling=study.data.scaling),
        marks=marks
        | made.marks
        | of_model
        | of_loss
        | protocols(study)
        | _dealing(study)
        | Digests(bound=split_by)
        | shares,
    )


def _require_codes(records: Sequence[tuple[str, NDArray[Any]]], name: str, codes: NDArray[np.int64]) -> None:
    """Raises DataError if a record has a code that the model does not know. records: with their owners."""
    for owner, x in records:
        if (strange := (x < 0) | (x >= codes)).any():
            row, *place = np.argwhere(strange)[0].tolist()
            raise DataError(
                f"{name}: expected codes from 0 to {codes[*place] - 1:,} at {tuple(place)}, as many as the "
                f"model knows, got {x[row, *place]:,} in a record of {owner}. Correct the record, or give "
                "the model a larger table."
            )


def _apart(
    parts: Sequence[NDArray[np.int64]], count: int, rng: np.random.Generator
) -> tuple[tuple[NDArray[np.int64], ...], NDArray[np.int64]]:
    """The clients' records without those of `count` clients, and those clients' records."""
    out = set(rng.permutation(len(parts))[:count].tolist())
    kept = tuple(part for client, part in enumerate(parts) if client not in out)
    return kept, np.sort(np.concatenate([parts[client] for client in sorted(out)]))


def _parted(
    records: Sequence[Records], out: Sequence[NDArray[np.bool_]] | None, tested: Sequence[NDArray[np.bool_]]
) -> tuple[Sequence[Records], Sequence[Records] | None]:
    """Each client's training records, and those held out that are tested on (None without a hold-out)."""
    if out is None:
        return records, None
    return (
        [(x[~own], y[~own]) for (x, y), own in zip(records, out, strict=True)],
        [(x[own & on], y[own & on]) for (x, y), own, on in zip(records, out, tested, strict=True)],
    )


def tested_on(study: Study, x: NDArray[Any], y: NDArray[Any], sides: Sides) -> NDArray[np.bool_]:
    """A mask (n,) of the test records that this study tests on: those for choosing, or the others."""
    if not study.data.validation:
        return np.ones(len(x), np.bool_)
    choosing = sides.apart(x, y, study.data.validation, VALIDATION)
    return choosing if study.data.test_on == "validation" else ~choosing


def _tested(study: Study, test: Dataset, sides: Sides) -> Dataset:
    found = test.take(np.flatnonzero(tested_on(study, test.x, test.y, sides)))
    # Under a claim the error would reveal how many records there are.
    if len(test) and not len(found) and not study.claims:
        raise ConfigError(
            f"Expected test records on both sides of validation = {study.data.validation:g}, got none to "
            f"test on of {len(test)}. Take another share, or more test records."
        )
    return found


def scale(study: Study, x: NDArray[Any]) -> NDArray[Any]:
    """Records (n, ...) by the public constants of `[data] scaling`, or as they are without any."""
    return x if study.data.scaling is None else study.data.scaling.of(x)


def _of_all(study: Study, train: Dataset, dealt: int) -> int:
    """The number of clients in the whole data set. dealt: the number of clients that got records."""
    if study.data.partition.kind != "natural" or train.groups is None:
        return dealt
    return train.holders or len(np.unique(train.groups))


def _declared(study: Study, owned: int, clients: int, part: float, leaving: bool) -> int:
    """The public number of all clients' records.

    owned: the true number. part: the share of the data set's clients that take part.
    Raises ConfigError if a neighbouring data set may have another number, a finite epsilon is claimed, and
    the study declares no public number.
    """
    section = study.data
    if study.privacy.counts_are_public(leaving):
        return max(1, owned)
    if study.packaged:
        # From the published number: the true number may be one record less in a neighbouring data set.
        published = section.records or PUBLISHED[section.source or ""]
        return max(1, round(published * part)) if study.claims else owned
    if section.public_num_examples is not None:
        return section.public_num_examples * clients
    if study.claims and section.records is None:
        raise ConfigError(
            "[data] Expected `public_num_examples` under a finite epsilon, got none: the number of a "
            "client's records is private there, so other parties get a declared number in its place. Write "
            "one that does not follow from the records, such as public_num_examples = 100."
        )
    return owned


def _dealing(study: Study) -> Digests:
    """The statement that records were drawn or dealt by their places, if so and an epsilon is claimed."""
    section = study.data
    natural = section.partition.kind == "natural"
    if not study.claims or (natural and section.records is None and study.corruption == Corruption()):
        return Digests()
    return Digests(
        outside=(
            "Records are drawn, corrupted and dealt to clients by their places in the data set. No epsilon "
            "covers these steps: it is that of a record as it was dealt.",
        )
    )


def _shares(study: Study, test: Dataset, kept: Sequence[Records], held: Sequence[Records] | None) -> Digests:
    """How many records of each class are on each side of the splits by content, for the records' owner."""
    sides = {"trained on": [y for _, y in kept]}
    if held is not None:
        sides = {"held out": [y for _, y in held], **sides}
    if study.shares:
        sides = {"test part": [test.y], **sides}
    if len(sides) == 1:
        return Digests()
    joined = {name: np.concatenate(targets) for name, targets in sides.items()}
    whole, told = max(1, sum(map(len, joined.values()))), []
    for name, y in joined.items():
        each = [str((y == label).sum()) for label in range(test.classes)]
        by_class = f", by class {', '.join(each)}" if test.classes else ""
        told.append(f"{name} {len(y)} ({len(y) / whole:.1%}{by_class})")
    words = "; ".join(told)
    return Digests(private={"parts": words}, notes=(f"Records by side: {words}.",))


def _require_fitting(study: Study, train: Dataset) -> None:
    """Raises ConfigError if the model does not read the records' type, or text would be corrupted."""
    text = train.x.dtype != np.float32
    for key in ("features", "scaling"):
        if text and getattr(study.data, key) is not None:
            raise ConfigError(f"Expected numbers or images for `{key}`, got text in {train.name!r}.")
    if isinstance(study.model, ModelConfig) and text != study.model.reads_text:
        raise ConfigError(
            f"[model] Expected a model that reads {'text' if text else 'numbers'} for "
            f"{train.name!r}, got kind {study.model.kind!r}. "
            f"{'Take char_lstm.' if text else 'Take another model.'}"
        )
    if study.data.scaling is not None:
        try:
            study.data.scaling.require(train.shape)
        except ValueError as error:
            raise ConfigError(f"scaling: {error}") from None
    if text and study.corruption != Corruption():
        raise ConfigError(
            "[corruption] Expected no such section for text, got one: it corrupts numbers and images alone. "
            "Leave it out."
        )


def _require_public(study: Study, *datasets: Dataset | None) -> None:
    """Raises ConfigError if a study claims a finite epsilon for data prepared by statistics over records."""
    # No ledger counts such a statistic: one more record changes the values that all other records get.
    for dataset in datasets:
        if study.claims and dataset is not None and dataset.fitted:
            raise ConfigError(
                f"Expected data prepared by public constants under a finite epsilon, got {dataset.name!r}: "
                f"{dataset.fitted}. Take another source, or leave out the noise and [dpsgd]."
            )


def _drawn(study: Study, split: Split, seed: int) -> Split:
    """The split with as many of its training records as the study draws."""
    records = study.data.records
    if records is None:
        return split
    if records > len(split.train):
        most = "the number of training records" if study.claims and not study.packaged else len(split.train)
        raise ConfigError(f"Expected records <= {most}, got {records}.")
    kept = stream(seed, "records").permutation(len(split.train))[:records]
    return replace(split, train=split.train.take(np.sort(kept)))


def _cost(study: Study, model: cost.CostModel, shape: tuple[int, ...], text: bool) -> cost.CostModel:
    if not study.cost.real_bytes:
        return model
    return replace(
        model,
        model_megabytes=None,
        # One byte for a pixel or character, four for a float32 feature.
        bits_per_sample=(8 if len(shape) > 1 or text else 32) * prod(shape),
    )
