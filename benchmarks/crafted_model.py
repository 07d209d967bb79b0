"""Records read from one masked total by a server that crafts the model, and the same under finite epsilon.

    python benchmarks/crafted_model.py [--write]

Ten honest clients train on digits, as docs/examples/crafted_model.toml says: their code, their plan and the
masked sum are those of any study. Only the broadcast model is the server's own. It is equal for all clients,
and all of them sign it. Two models are tried:

- "bins" (Fowl et al. 2022, arXiv 2110.13057): all units of the first layer measure the same number of a
  record, each with another threshold. The difference of two neighbouring units' updates is what the records
  between two thresholds gave. If that is one record, it is read.
- "traps" (Boenisch et al. 2021, arXiv 2112.02918): each unit measures in a direction of its own, and so high
  that one record in all of them exceeds the threshold. Its update over that of its bias is that record.

A record counts as read if some picture is within 0.02 of it at every pixel (of 0 to 1) after the best
rescaling, which a server would have to guess. Split and models have seeds. Noise comes from the operating
system, so pictures under finite epsilon differ from run to run.

`--write` keeps them in benchmarks/results/crafted_model.json, and draws docs/crafted_model.png.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from kept import ASKED, DOCS, keep
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.datasets import load_digits

from securefl import SecureAggregator
from securefl.algorithm import ByDraws, ClientFunction, CohortQuery, Sum
from securefl.report.style import GRID
from securefl.report.tables import write_png
from securefl.study.composition import composition
from securefl.study.config import parse
from securefl.study.world import build

Floats = NDArray[np.floating[Any]]
Kind = Literal["bins", "traps"]
Records = tuple[NDArray[np.float32], NDArray[np.int64]]
STUDY = (DOCS / "examples" / "crafted_model.toml").read_text(encoding="utf-8")
PRIVATE = """
[dpsgd]
epsilon = {epsilon:g}
clip_norm = 1.0
sampling_rate = 1.0
expected_batch = 126.0
steps = 1
optimizer = "sgd"
learning_rate = 0.1
"""
PER_CLIENT = {
    'noise = "none"': 'noise = "distributed"\nepsilon = {epsilon:g}',
    'unit = "record"': 'unit = "client"',
    'adjacency = "add-remove"': 'adjacency = "zero-out"',
    "delta = 1e-5": "delta = 1e-2",
    "epochs = 1": "epochs = 1\nupdate_bound = 1.0",
}
EPSILONS = (1000.0, 100.0, 8.0, 1.0)
DRAWN = ("the records", "no noise", *(f"ε = {epsilon:,g} per record" for epsilon in EPSILONS))
NEAR, SHOWN = 0.02, 8
_SMALL, _LOUD = 1e-3, 100.0
"""Weights of the first and the second layer: outputs stay small, and slopes are large."""


def noised(epsilon: float, *, unit: Literal["record", "client"] = "record", study: str = STUDY) -> str:
    """The study under this epsilon per record, by [dpsgd], or per client, by shares of noise."""
    if epsilon == inf:
        return study
    if unit == "record":
        return study + PRIVATE.format(epsilon=epsilon)
    for old, new in PER_CLIENT.items():
        study = study.replace(old, new.format(epsilon=epsilon))
    return study


def several_steps() -> str:
    """The study with two passes in batches of 16, in which the crafted model moves."""
    return STUDY.replace("epochs = 1", "epochs = 2").replace("batch_size = 200", "batch_size = 16")


@dataclass(frozen=True, kw_only=True, eq=False)
class Crafted:
    """A model (64 numbers, H units, 10 classes) that a server crafts.

    directions: (H, 64), what each unit measures. thresholds: (H,), above which it fires.
    """

    kind: Kind
    directions: Floats
    thresholds: Floats

    @classmethod
    def of(cls, kind: Kind, units: int, public: Floats, records: int, rng: np.random.Generator) -> Crafted:
        """From records of the server's own, and the number of records that clients have together."""
        if kind == "traps":
            directions = rng.normal(size=(units, public.shape[1]))
            rare = np.full(units, 1 / records)
        else:
            directions = np.tile(rng.normal(size=public.shape[1]), (units, 1))
            rare = np.arange(units, 0, -1) / (units + 1)
        seen = public @ directions.T
        return cls(kind=kind, directions=directions, thresholds=seen.mean(0) + seen.std(0) * norm.isf(rare))

    def model(self, classes: int = 10) -> NDArray[np.float32]:
        """The model as it is broadcast. All units have the same weights of the classes."""
        loud = np.repeat(np.linspace(-_LOUD, _LOUD, classes), len(self.thresholds))
        first = (_SMALL * self.directions.ravel(), -_SMALL * self.thresholds)
        return np.concatenate([*first, loud, np.zeros(classes)]).astype(np.float32)

    def read(self, total: Floats) -> Floats:
        """A picture of each unit, or of each two neighbours, from the total of the updates: (H, 64)."""
        units, pixels = self.directions.shape
        firsts = np.hstack(
            [total[: units * pixels].reshape(units, pixels), total[units * pixels :][:units, None]]
        )
        if self.kind == "bins":
            firsts[:-1] -= firsts[1:].copy()
        # Over the bias' part it is the record; with noise only the sign of that part is of use.
        return firsts[:, :-1] * np.where(firsts[:, -1:] < 0, -1, 1)

    def alone(self, records: Floats) -> NDArray[np.int64]:
        """Of each unit of "traps", the one record that fires it, or -1. Nobody but an observer knows."""
        fired = records @ self.directions.T > self.thresholds
        return np.where(fired.sum(0) == 1, fired.argmax(0), -1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attack:
    """What a server read, beside the truth. pictures: (H, 64). records: (N, 64), of all clients."""

    crafted: Crafted
    records: Floats
    pictures: Floats
    epsilon: float

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Each picture and the record that it equals, to `NEAR` a pixel after the best scaling."""
        for number, picture in enumerate(self.pictures):
            with np.errstate(all="ignore"):  # a picture without a pixel equals none
                factors = self.records @ picture / (picture @ picture)
                apart = np.abs(factors[:, None] * picture - self.records).max(axis=1)
            for record in np.flatnonzero(apart <= NEAR):
                yield number, int(record)

    @property
    def read(self) -> int:
        """The number of records that the server has read."""
        return len({record for _, record in self.pairs()})

    @property
    def likeness(self) -> float:
        """The mean cosine between pictures of "traps" and the records that fired them: 1 is a copy.

        Of pictures that are noise alone it is 0, with a deviation of 1 / sqrt(64 units) at most.
        """
        alone = self.crafted.alone(self.records)
        pictures, records = self.pictures[alone >= 0], self.records[alone[alone >= 0]]
        lengths = np.linalg.norm(pictures, axis=1) * np.linalg.norm(records, axis=1)
        return float(np.mean(np.sum(pictures * records, axis=1) / np.maximum(lengths, 1e-30)))


def dealt(clients: int = 10, each: int = 126, seed: int = 0) -> tuple[list[Records], Floats]:
    """Digits of this many clients, and those that are left, which are the server's own."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32), y[order]
    parts = [slice(each * k, each * (k + 1)) for k in range(clients)]
    return [(x[part], y[part]) for part in parts], x[clients * each :].astype(np.float64)


def attack(study: str, kind: Kind, clients: Sequence[Records], public: Floats, seed: int = 0) -> Attack:
    """Run one sum of the study's honest clients on a crafted model, with these records, and read it."""
    found = parse(study)
    world = build(found, found.study.seeds[0])
    algorithm, plan = composition(found, found.arms[0], world)
    (update,) = (own for own in algorithm.contributions if own.spec.name == "update")
    records = np.concatenate([x for x, _ in clients]).astype(np.float64)
    units = len(world.problem.initial) // (records.shape[1] + 1 + 10)
    crafted = Crafted.of(kind, units, public, len(records), np.random.default_rng(seed))
    model, everyone = crafted.model(), tuple(range(len(clients)))
    query = CohortQuery(
        cohort=everyone,
        broadcast=model,
        sums=(Sum(update.spec, len(model)),),
        weights=ByDraws(dict.fromkeys(everyone, 1)),
    )
    own = [ClientFunction(update.spec, update.compute)]
    shaped = [(x.reshape(len(x), *world.problem.shape), y) for x, y in clients]
    with (
        tempfile.TemporaryDirectory() as folder,
        SecureAggregator(plan, own, shaped, ledger=f"{folder}/ledger") as aggregator,
    ):
        total = aggregator.query(query).totals["update"].value
        spent = aggregator.ledger.worst("server")
    return Attack(crafted=crafted, records=records, pictures=crafted.read(total), epsilon=spent)


def measured() -> dict[str, Any]:
    """The figures of all settings, and pictures of `SHOWN` records under each epsilon per record."""
    clients, public = dealt()
    settings = {
        "no noise": STUDY,
        "no noise, 2 passes in batches of 16": several_steps(),
        **{f"ε = {epsilon:,g} per record": noised(epsilon) for epsilon in EPSILONS},
        "ε = 8 per client": noised(8.0, unit="client"),
    }
    rows, pictures, chosen = [], {}, list[tuple[int, int]]()
    for name, study in settings.items():
        found = {kind: attack(study, kind, clients, public) for kind in get_args(Kind)}
        traps = found["traps"]
        if not rows:
            chosen = [*traps.pairs()][:SHOWN]
            pictures["the records"] = [_grey(traps.records[record]) for _, record in chosen]
        row = {"setting": name, "epsilon": traps.epsilon if traps.epsilon < inf else "inf"}
        row |= {kind: own.read for kind, own in found.items()}
        rows.append(row | {"likeness": round(traps.likeness, 2) + 0.0})
        pictures[name] = [_grey(traps.pictures[number]) for number, _ in chosen]
    return {"records": len(traps.records), "rows": rows, "pictures": pictures}


def _grey(picture: Floats) -> list[int]:
    """0 to 255, the largest value being 255 and what is below 0 being 0. No pixel of a digit is below 0."""
    picture = picture * np.sign(picture.sum())
    return np.rint(255 * np.clip(picture / max(picture.max(), 1e-12), 0, 1)).astype(int).tolist()


def draw(kept: Mapping[str, Any]) -> Figure:
    """The records, and below them what the server reads under each epsilon."""
    rows = {name.removesuffix(" per record"): own for name, own in kept["pictures"].items() if name in DRAWN}
    figure = Figure(figsize=(5.6, 0.62 * len(rows)), layout="constrained", dpi=150)
    axes = figure.subplots(len(rows), SHOWN)
    for (name, pictures), line in zip(rows.items(), axes, strict=True):
        for picture, panel in zip(pictures, line, strict=True):
            panel.imshow(np.reshape(picture, (8, 8)), cmap="Greys", vmin=0, vmax=255)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_color(GRID)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=11)
    return figure


def main() -> None:
    found = measured()
    print(pd.DataFrame(found["rows"]).to_string(index=False))
    keep("crafted_model", found)
    if ASKED:
        write_png(DOCS / "crafted_model.png", draw(found))


if __name__ == "__main__":
    main()
