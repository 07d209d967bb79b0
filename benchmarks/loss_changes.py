"""Are loss changes normal, and does their covariance stay? FedCor's appendix D.2 and D.3, from a run.

    python benchmarks/loss_changes.py RUN [--arm FedCor] [--seed 1] [--rounds 15 25 35] [--samples 1000]

RUN is the folder of a run. An observer plays the arm again up to each of the rounds; a run is the same each
time. Every client trains once from the round's model. For each of the uniform cohorts the mean of its models
is tested on every client's records, those held out if the study holds out any. In the paper each cohort
trains anew; here a client's training is drawn once a round.

Writes RUN/plots/loss_changes.png, RUN/plots/loss_covariance.png and RUN/loss_changes.csv, and prints the
table: the excess kurtosis and the skewness of the main components, the cosine of a round's covariance with
the one before, and with X^T X of the arm's own embeddings, if it has any.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats

from securefl.algorithm.clients import ClientContext, State
from securefl.algorithm.queries import Floats
from securefl.core.streams import stream
from securefl.protocols.averaging import Averaging
from securefl.protocols.fedcor import covariance
from securefl.report.style import ARM_COLOURS, blank, light_frame
from securefl.report.tables import write_csv, write_png
from securefl.storage import files
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.composition import composition
from securefl.study.config import Arm, Study, read
from securefl.study.run import run_arm
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.training.fitting import one_by_one
from securefl.training.losses import losses_of, records

SHOWN = 4
"""Main components in the figure of D.2."""


@dataclass(frozen=True)
class Sampled:
    """Loss changes of uniform cohorts in one round, (samples, N), and the arm's own covariance, if any."""

    number: int
    changes: Floats
    own: Floats | None

    @property
    def covariance(self) -> Floats:
        """(N, N), uncentred, as FedCor's process has it."""
        return self.changes.T @ self.changes / len(self.changes)


def states(study: Study, arm: Arm, world: World, rounds: list[int]) -> list[State]:
    """The state before each of these rounds, from the arm played again."""
    found = []
    algorithm, _ = composition(study, arm, world)
    with tempfile.TemporaryDirectory() as folder:
        for number in rounds:
            if number == 1:
                found.append(algorithm.start())
                continue
            run_arm(study, arm, world, Path(folder), lambda record: None, rounds=number - 1)
            with Checkpoint(checkpoint_file(arm_folder(Path(folder), arm, world.seed))) as checkpoint:
                state, _ = checkpoint.load()
            assert state is not None
            found.append(state)
    return found


def trained(world: World, algorithm: Averaging, state: State, number: int) -> Floats:
    """The step that each client's training from this model makes, (N, d)."""
    steps = np.zeros((world.problem.clients, len(state.broadcast)))
    for client, (x, y) in enumerate(world.records):
        rng = stream(world.seed, "loss changes", number, client)
        context = ClientContext(
            client=client, round=number, x=x, y=y, broadcast=state.broadcast, public={}, rng=rng
        )
        [came] = one_by_one([algorithm.update.fit(context)])  # type: ignore[attr-defined]
        if not isinstance(came, Exception):
            steps[client] = came.astype(np.float64) - state.broadcast
    return steps


class Losses:
    """Every client's mean loss of a model, over the records that it is tested on."""

    def __init__(self, world: World) -> None:
        own = world.records if world.held is None else world.held
        self._problem = world.problem
        self._inputs, self._targets = records(
            np.concatenate([x for x, _ in own]), np.concatenate([y for _, y in own]), world.problem.loss
        )
        self._owner = np.repeat(np.arange(len(own)), [len(x) for x, _ in own])
        self._counts = np.bincount(self._owner, minlength=len(own))

    def __call__(self, model: Any) -> Floats:
        module = self._problem.module(np.asarray(model, dtype=np.float32)).eval()
        with torch.inference_mode():
            parts = [
                losses_of(module(x), y, self._problem.loss)
                for x, y in zip(
                    torch.split(self._inputs, 2048), torch.split(self._targets, 2048), strict=True
                )
            ]
        sums = np.bincount(self._owner, torch.cat(parts).double().numpy(), minlength=len(self._counts))
        return np.where(self._counts > 0, sums / np.maximum(self._counts, 1), 0.0)


def sampled(world: World, algorithm: Averaging, state: State, number: int, samples: int) -> Sampled:
    steps, losses = trained(world, algorithm, state, number), Losses(world)
    clients, before = world.problem.clients, losses(state.broadcast)
    count = max(1, round(algorithm.fraction * clients))
    rng = stream(world.seed, "loss changes", number)
    changes = np.array(
        [
            losses(state.broadcast + steps[rng.choice(clients, count, replace=False)].mean(axis=0)) - before
            for _ in range(samples)
        ]
    )
    embedding = state.memory.get("embedding")
    return Sampled(number, changes, None if embedding is None else covariance(embedding))


def cosine(one: Floats, other: Floats) -> float:
    """Of two covariances, as long vectors (Eq. 151, with the roots that its 0 to 1 needs)."""
    return float((one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other))


def components(changes: Floats) -> tuple[Floats, Floats]:
    """The changes along their main components, (samples, SHOWN), and each one's share of the variance."""
    centred = changes - changes.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    return (left * sizes)[:, :SHOWN], (sizes**2 / (sizes**2).sum())[:SHOWN]


def table(found: list[Sampled]) -> pd.DataFrame:
    rows = []
    for before, now in zip([None, *found], found, strict=False):
        along, shares = components(now.changes)
        rows.append(
            {
                "round": now.number,
                "samples": len(now.changes),
                "similarity_to_last": np.nan if before is None else cosine(before.covariance, now.covariance),
                "similarity_to_embeddings": np.nan if now.own is None else cosine(now.own, now.covariance),
                **{f"share_{i + 1}": share for i, share in enumerate(shares)},
                **{f"skewness_{i + 1}": value for i, value in enumerate(stats.skew(along, axis=0))},
                **{f"kurtosis_{i + 1}": value for i, value in enumerate(stats.kurtosis(along, axis=0))},
            }
        )
    return pd.DataFrame(rows)


def normality(of: Sampled) -> Any:
    """D.2: histograms of the main components, under the normal density of their mean and variance."""
    along, shares = components(of.changes)
    figure = blank(height=2.6)
    figure.set_layout_engine("constrained")  # for the title above all panels
    for place, axes in enumerate(figure.subplots(1, along.shape[1], squeeze=False)[0]):
        light_frame(axes)
        own = along[:, place]
        axes.hist(
            own,
            bins=min(40, max(5, len(own) // 10)),
            density=True,
            color=ARM_COLOURS[0],
            alpha=0.6,
            linewidth=0,
        )
        grid = np.linspace(own.min(), own.max(), 200)
        axes.plot(grid, stats.norm(own.mean(), own.std()).pdf(grid), color=ARM_COLOURS[1])
        axes.set_title(f"component {place + 1}: {shares[place]:.0%} of variance", fontsize=9)
        axes.set_yticks([])
    figure.suptitle(f"Loss changes in round {of.number}, and the normal density", fontsize=11)
    return figure


def stationarity(rows: pd.DataFrame) -> Any:
    """D.3: how alike the covariances of successive rounds are."""
    figure = blank(height=3.2)
    axes = figure.subplots()
    light_frame(axes)
    names = {"similarity_to_last": "with the round before", "similarity_to_embeddings": "with the embeddings"}
    for colour, (column, label) in zip(ARM_COLOURS, names.items(), strict=False):
        own = rows.dropna(subset=column)
        if len(own):
            axes.plot(own["round"], own[column], marker="o", color=colour, label=label)
    axes.set_ylim(min(0.0, float(rows[list(names)].min().min())), 1.0)
    axes.set_xlabel("round")
    axes.set_ylabel("cosine of covariances")
    axes.legend(frameon=False)
    return figure


def main() -> None:
    torch.set_num_threads(1)
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("run", type=Path)
    words.add_argument("--arm", default="FedCor")
    words.add_argument("--seed", type=int)
    words.add_argument("--rounds", type=int, nargs="+", default=[15, 25, 35])
    words.add_argument("--samples", type=int, default=1000)
    asked = words.parse_args()
    study = read(asked.run / "study.toml")
    named = [arm for arm in study.arms if arm.name == asked.arm]
    if not named:
        words.error(f"Expected an arm among {[arm.name for arm in study.arms]}, got {asked.arm!r}.")
    world = build(study, study.study.seeds[0] if asked.seed is None else asked.seed)
    algorithm, _ = composition(study, named[0], world)
    if not isinstance(algorithm, Averaging):
        words.error(f"Expected an arm that averages models, got {asked.arm!r}.")
    rounds = sorted(set(asked.rounds))
    found = [
        sampled(world, algorithm, state, number, asked.samples)
        for number, state in zip(rounds, states(study, named[0], world, rounds), strict=True)
    ]
    rows = table(found)
    pictures = files.subfolder(asked.run / "plots")
    write_csv(asked.run / "loss_changes.csv", rows)
    write_png(pictures / "loss_changes.png", normality(found[0]))
    write_png(pictures / "loss_covariance.png", stationarity(rows))
    print(rows.round(3).to_string(index=False))


if __name__ == "__main__":
    main()
