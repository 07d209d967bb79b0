"""Making the world of one seed: records are dealt out and spoilt, features computed, devices drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError
from securefl.core.streams import public_seed, stream
from securefl.data import Corruption, Dataset, Split
from securefl.data.corruptions import unrelated
from securefl.data.sides import HOLDOUT
from securefl.data.sources import PUBLISHED
from securefl.engine.party.computing import Records
from securefl.study import cost
from securefl.study.config import Study, placed
from securefl.study.cost import PRESETS
from securefl.study.own_code import Told, architecture, featured
from securefl.study.own_code import records as own_records
from securefl.study.seeded import Marks, World
from securefl.study.split_key import Keeper, Splits
from securefl.training.devices import Hardware, chosen
from securefl.training.models import ModelConfig
from securefl.training.task import Problem


def build(
    study: Study,
    seed: int,
    hardware: Hardware | None = None,
    tell: Told = lambda done, total: None,
    splits: Splits | None = None,
) -> World:
    """Load, split and spoil the data of one seed, compute features, and draw its devices.

    hardware: where models are computed, by default where the study asks for. tell: of features. splits: says
    which records are tested on, by default for whoever only looks (see `Keeper`).
    """
    with placed(study, "[runtime]"):
        hardware = hardware or chosen(study.runtime.device)
    with placed(study, "[data]"):
        return _built(study, seed, hardware, tell, splits or Keeper().splits(study, seed))


def _built(study: Study, seed: int, hardware: Hardware, tell: Told, splits: Splits) -> World:
    split, marks, leaving = own_records(study, seed, splits.test)
    split = _drawn(study, split, seed)
    clients, apart = study.data.clients, study.data.test_clients
    if clients is not None and clients + apart > len(split.train):
        wanted = (
            f"clients <= {len(split.train) - apart}" if apart else f"clients <= {len(split.train)} records"
        )
        if study.claims and not study.packaged:
            wanted = "a record for each client"
        raise ConfigError(f"Expected {wanted}, got {clients}.")
    other = unrelated(study.corruption, split.train, stream(seed, "irrelevant"))
    _require_public(study, split.train, other)
    _require_fitting(study, split.train)
    # Each step has a stream of its own, named by its purpose: a change of one changes no other.
    dealt = None if clients is None else clients + apart
    parts = study.data.partition.split(split.train, dealt, stream(seed, "partition"))
    if len(parts) <= apart:
        raise ConfigError(f"Expected test_clients < {len(parts)}, the number of clients, got {apart}.")
    if apart:
        parts, tests = _apart(parts, apart, stream(seed, "test clients"))
        split = replace(split, test=split.train.take(tests))
    clients = len(parts)
    whole = _of_all(study, split.train, clients + apart)
    quality = study.corruption.assign(clients, stream(seed, "quality"))
    records, out = [], []
    for client, (part, kind) in enumerate(zip(parts, quality, strict=True)):
        dealt_to = split.train.take(part)
        own = study.corruption.apply(dealt_to, kind, stream(seed, "corrupt", client), other)
        records.append((own.x, own.y))
        # By the records as they came: what spoils them, and last bits of features, may go by place.
        out.append(splits.holdout.apart(dealt_to.x, dealt_to.y, study.data.holdout, HOLDOUT))
    made = featured(study, records, split.test, tell)
    kept, held = _parted(made.records, out if study.data.holdout else None)
    owned = sum(map(len, parts)) if apart else len(split.train)
    owned = _declared(study, owned, clients, clients / max(1, whole), leaving)
    # Behind here nobody asks for a record of all clients' together, only for what one is like.
    train = replace(split.train.take(slice(0)), x=np.empty((0, *made.shape), split.train.x.dtype))
    outputs, model_seed = train.classes or train.y.shape[1], public_seed(seed, "model")
    with placed(study, "[model]"):
        model, of_model = architecture(study, train, outputs, model_seed)
    problem = Problem(
        model=model,
        local=study.local,
        kind="classification" if train.classes else "regression",
        shape=train.shape,
        outputs=outputs,
        clients=clients,
        records=owned,
        leaving=leaving,
        server_x=made.test.x,
        server_y=made.test.y,
        seed=model_seed,
        private=study.dpsgd,
        hardware=hardware,
        planned=partial(
            study.privacy.plan, study.study.rounds, records=owned, clients=clients, leaving=leaving
        ),
    )
    preset = PRESETS[study.cost.preset]
    return World(
        seed=seed,
        problem=problem,
        records=kept,
        quality=quality,
        cost_model=_cost(study, preset.model, train.shape, model.reads_text),
        devices=preset.law.draw(clients, stream(seed, "devices")),
        held=held,
        marks=marks | made.marks | of_model | _dealing(study) | _bound_to(splits),
    )


def _apart(
    parts: Sequence[NDArray[np.int64]], count: int, rng: np.random.Generator
) -> tuple[tuple[NDArray[np.int64], ...], NDArray[np.int64]]:
    """The clients' records without those of `count` clients, and those clients' records."""
    out = set(rng.permutation(len(parts))[:count].tolist())
    kept = tuple(part for client, part in enumerate(parts) if client not in out)
    return kept, np.sort(np.concatenate([parts[client] for client in sorted(out)]))


def _parted(
    records: Sequence[Records], out: Sequence[NDArray[np.bool_]] | None
) -> tuple[Sequence[Records], Sequence[Records] | None]:
    """What each client trains on, and what it holds out."""
    if out is None:
        return records, None
    return (
        [(x[~own], y[~own]) for (x, y), own in zip(records, out, strict=True)],
        [(x[own], y[own]) for (x, y), own in zip(records, out, strict=True)],
    )


def _of_all(study: Study, train: Dataset, dealt: int) -> int:
    """How many clients the data set has in all. dealt: those that records were dealt out to."""
    if study.data.partition.kind != "natural" or train.groups is None:
        return dealt
    return train.holders or len(np.unique(train.groups))


def _declared(study: Study, owned: int, clients: int, part: float, leaving: bool) -> int:
    """The public number of all clients' records. owned: how many there are. part: of a data set's clients.

    Raises ConfigError where that is data, a finite epsilon is claimed, and the study declares no number.
    """
    section = study.data
    if study.privacy.counts_are_public(leaving):
        return owned
    if study.packaged:
        # By the published number: what there is may be one record less.
        published = section.records or PUBLISHED[section.source or ""]
        return max(1, round(published * part)) if study.claims else owned
    if section.public_num_examples is not None:
        return section.public_num_examples * clients
    if study.claims and section.records is None:
        raise ConfigError(
            "Expected `public_num_examples` under a finite epsilon, got none: how many records a client has "
            "is data "
            "there, so others are told a number in its place. Write one that does not follow from the "
            "records, such as public_num_examples = 100."
        )
    return owned


def _dealing(study: Study) -> Marks:
    """That records are drawn and dealt out by their places, if they are and an epsilon is claimed."""
    section = study.data
    natural = section.partition.kind == "natural"
    if not study.claims or (natural and section.records is None and study.corruption == Corruption()):
        return Marks()
    return Marks(
        outside=(
            "Records are drawn, spoilt and dealt out to clients by their places, before anything is claimed: "
            "an epsilon is that of a record as it was dealt.",
        )
    )


def _bound_to(splits: Splits) -> Marks:
    return Marks(bound={"split": splits.bound}) if splits.bound else Marks()


def _require_fitting(study: Study, train: Dataset) -> None:
    """Raises ConfigError for text that the model does not read, or that noise would be put on."""
    text = train.x.dtype != np.float32
    if text and study.data.features is not None:
        raise ConfigError(f"Expected numbers or images for `features`, got text in {train.name!r}.")
    if isinstance(study.model, ModelConfig) and text != study.model.reads_text:
        raise ConfigError(
            f"[model] Expected a model that reads {'text' if text else 'numbers'} for "
            f"{train.name!r}, got kind {study.model.kind!r}. "
            f"{'Take char_lstm.' if text else 'Take another model.'}"
        )
    if text and study.corruption != Corruption():
        raise ConfigError(
            "[corruption] Expected no such section for text, got one: it spoils numbers and images. Leave it "
            "out."
        )


def _require_public(study: Study, *datasets: Dataset | None) -> None:
    """Raises ConfigError if a study with a finite epsilon has data prepared by statistics over records."""
    # Such a statistic is a release that nobody accounts: one more record moves what is made of all others.
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
        most = "those that there are" if study.claims and not study.packaged else len(split.train)
        raise ConfigError(f"Expected records <= {most}, got {records}.")
    kept = stream(seed, "records").permutation(len(split.train))[:records]
    return replace(split, train=split.train.take(np.sort(kept)))


def _cost(study: Study, model: cost.CostModel, shape: tuple[int, ...], text: bool) -> cost.CostModel:
    if not study.cost.real_bytes:
        return model
    return replace(
        model,
        model_megabytes=None,
        # bytes of pixels and characters, float32 features
        bits_per_sample=(8 if len(shape) > 1 or text else 32) * prod(shape),
    )
