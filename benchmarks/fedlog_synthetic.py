"""FedLog beside LG-FedAvg on the FedLog paper's synthetic data: two clients, two features, one round.

    python benchmarks/fedlog_synthetic.py [--write]

Prints mean accuracies after 1 to 30 local iterations, over 6 seeds, and some at ten times the rate. `--write`
keeps the figures in benchmarks/results/fedlog_synthetic.csv, and draws docs/fedlog_synthetic.png.

The paper ("Synthetic", Fig. 1): 80 points, uniform in [-5, 5]^2, in two classes by the circle of radius
26/7. The half with the smaller x1 is client 0's, whose body has three layers, the rest client 1's, whose
body has two. Widths, optimizer, what a local iteration is, and the first head are left open. Here, for both
systems alike: hidden layers of 64 with ReLU and two linear features; the paper's training on MNIST (Adam,
rate 0.001, batches of 10), an iteration being a pass; the same initial bodies, batches and first head, which
is that of FedLog's exchange of statistics on the initial bodies (LG-FedAvg gets it for free). The outcome
hangs on these: with the rate 0.01 LG-FedAvg is ahead in the end. A testing point belongs to the client on
whose side of the split it lies; there are 2,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from kept import ASKED, DOCS, keep
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import nn

from securefl.algorithm.clients import Algorithm, ClientContext, Device, Population, State, run_round
from securefl.algorithm.queries import Answers, ByDraws, ClientState, CohortQuery, Floats, Total
from securefl.protocols.averaging import Averaging
from securefl.protocols.class_sums import Clipping
from securefl.protocols.fedlog.head import solve
from securefl.protocols.fedlog.options import FedLog, Heads
from securefl.protocols.lg_fedavg import LGFedAvg
from securefl.protocols.personal import SharedLayers
from securefl.report.style import blank, legend, light_frame, looks
from securefl.report.tables import write_png
from securefl.training import LocalTraining, ModelConfig, single_thread
from securefl.training.heads import last_dense, with_head
from securefl.training.models import MLP
from securefl.training.task import Bodies, Problem

RADIUS, TRAINED, TESTED = 26 / 7, 80, 2000
ITERATIONS = (*range(1, 11), *range(12, 31, 2))
SHOWN, SEEDS = (1, 5, 10, 20, 30), tuple(range(6))
SYSTEMS = ("FedLog", "LG-FedAvg")

Records = tuple[NDArray[np.float32], NDArray[np.int64]]


# The data and the models --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Data:
    """Points (n, 2) and classes (n,) of client 0 and client 1; `split` is the x1 that lies between them."""

    train: tuple[Records, Records]
    test: tuple[Records, Records]
    split: float


def points(count: int, rng: np.random.Generator) -> Records:
    """Class 0 inside the circle, class 1 outside."""
    x = rng.uniform(-5, 5, (count, 2)).astype(np.float32)
    return x, (np.hypot(x[:, 0], x[:, 1]) > RADIUS).astype(np.int64)


def data(seed: int) -> Data:
    rng = np.random.default_rng(seed)
    x, y = points(TRAINED, rng)
    order, half = np.argsort(x[:, 0], kind="stable"), TRAINED // 2
    x, y = x[order], y[order]
    split = float((x[half - 1, 0] + x[half, 0]) / 2)
    new, kinds = points(TESTED, rng)
    left = new[:, 0] < split
    return Data(
        train=((x[:half], y[:half]), (x[half:], y[half:])),
        test=((new[left], kinds[left]), (new[~left], kinds[~left])),
        split=split,
    )


class Extractor(ModelConfig):
    """An MLP with two linear outputs, the representation, under a head of one layer."""

    def _made(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(MLP(shape[0], 2, self.hidden or ()), nn.Linear(2, outputs))


@dataclass(frozen=True, eq=False)
class Pair(Bodies):
    """Client 0 has the longer body, client 1 the shorter, each with initial values of its own."""

    def of(self, client: int) -> Problem:
        return self.problem if client == 0 else self._second

    @cached_property
    def _second(self) -> Problem:
        return replace(self.problem.shorter, seed=self.problem.seed + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedHead(SharedLayers):
    """The head that two clients with these bodies share."""

    bodies: Pair

    def of(self, client: int) -> Problem:
        return self.bodies.of(client)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the paper leaves open."""

    rate: float = 1e-3
    width: int = 64

    def pair(self, iterations: int, seed: int) -> Pair:
        return Pair(
            Problem(
                model=Extractor(kind="mlp", hidden=(self.width, self.width), profiled_layer="0.fc1"),
                local=LocalTraining(
                    optimizer="adam", learning_rate=self.rate, epochs=iterations, batch_size=10
                ),
                kind="classification",
                shape=(2,),
                outputs=2,
                clients=2,
                records=TRAINED,
                server_x=np.zeros((0, 2), np.float32),
                server_y=np.zeros(0, np.int64),
                seed=2 * seed,
            )
        )


FASTER = Setting(rate=1e-2)


# One round of either system -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """After one round: the global head (2, 3), and what clients kept."""

    head: Floats
    kept: list[ClientState]
    train: float
    test: float


@dataclass(frozen=True, eq=False)
class Experiment:
    """Both systems on the same data, bodies, batches and first head."""

    setting: Setting
    iterations: int
    seed: int

    @cached_property
    def data(self) -> Data:
        return data(self.seed)

    @cached_property
    def bodies(self) -> Pair:
        return self.setting.pair(self.iterations, self.seed)

    @cached_property
    def heads(self) -> Heads:
        """The package's FedLog, on these bodies."""
        built = FedLog(body="private", clip=Clipping(kind="none")).build(self.bodies.problem)
        assert isinstance(built, Heads)
        trained: Any = built.body
        body = replace(trained, bodies=self.bodies)
        return replace(built, body=body, statistic=replace(built.statistic, body=body))

    @cached_property
    def first(self) -> NDArray[np.float32]:
        """The statistic (6,) that FedLog's round begins with; the head follows from it."""
        nothing = np.zeros(0, np.float32)
        each = (self.heads.statistic.compute(self.context(c, nothing)).floats() for c in (0, 1))
        return sum(each, np.zeros(6)).astype(np.float32)

    @cached_property
    def first_head(self) -> Floats:
        return solve(self.first.astype(np.float64).reshape(2, 3))

    def fedlog(self) -> Outcome:
        algorithm = self.heads
        state, kept = self.round(algorithm, replace(algorithm.start(), broadcast=self.first))
        head = solve(state.broadcast.astype(np.float64).reshape(2, 3))
        return self.outcome(algorithm, state, head, kept)

    def lg_fedavg(self) -> Outcome:
        problem = self.bodies.problem
        part = SharedHead(problem=problem, side="head", bodies=self.bodies)
        built = LGFedAvg(layers=1).build(problem)
        assert isinstance(built, Averaging)
        algorithm = replace(built, part=part)
        first = with_head(problem.module(problem.initial), self.first_head)[part.places(problem)]
        state, kept = self.round(algorithm, replace(algorithm.start(), broadcast=first))
        head = head_of(problem.module(part.model(0, state.broadcast, kept[0])))
        return self.outcome(algorithm, state, head, kept)

    def outcomes(self) -> dict[str, Outcome]:
        return dict(zip(SYSTEMS, (self.fedlog(), self.lg_fedavg()), strict=True))

    def context(self, client: int, model: NDArray[np.float32]) -> ClientContext:
        x, y = self.data.train[client]
        rng = np.random.default_rng([self.seed, client])
        return ClientContext(client=client, round=2, x=x, y=y, broadcast=model, public={}, rng=rng)

    def round(self, algorithm: Algorithm, state: State) -> tuple[State, list[ClientState]]:
        """The package's own round, sums in the clear; it counts as the second, so FedLog asks once."""
        (statistic,) = algorithm.contributions
        kept: list[ClientState] = []

        def query(question: CohortQuery, _stage: int) -> Answers:
            values = [
                statistic.compute(self.context(client, question.broadcast)) for client in question.cohort
            ]
            sent = [value.floats() for value in values]
            by = question.weights
            weights = [
                by.weight(client, statistic.spec) if isinstance(by, ByDraws) else 1.0
                for client in question.cohort
            ]
            kept.extend(value.new_state or {} for value in values)
            total = sum((w * v for w, v in zip(weights, sent, strict=True)), np.zeros(6))
            return Answers(
                survivors=question.cohort,
                totals={statistic.spec.name: Total(total, sum(weights))},
                per_client={},
            )

        population = Population(clients=2, seconds=np.ones(2))
        state = run_round(algorithm, state, population, 2, np.random.default_rng(self.seed), query).state
        assert len(kept) == 2, "one exchange"
        return state, kept

    def outcome(self, algorithm: Algorithm, state: State, head: Floats, kept: list[ClientState]) -> Outcome:
        def accuracy(records: tuple[Records, Records]) -> float:
            pairs = zip(records, kept, strict=True)
            devices = [Device(x=x, y=y, kept=own) for (x, y), own in pairs]
            return algorithm.evaluate(state, devices).accuracy

        return Outcome(head=head, kept=kept, train=accuracy(self.data.train), test=accuracy(self.data.test))


def head_of(model: nn.Module) -> Floats:
    """The head of a model, (2, 3): bias and weights."""
    dense = last_dense(model)
    values = np.column_stack([dense.bias.detach().numpy(), dense.weight.detach().numpy()])
    return values.astype(np.float64)


# The figures --------------------------------------------------------------------------------------


def accuracies(setting: Setting, iterations: Sequence[int], seeds: Sequence[int]) -> pd.DataFrame:
    """Columns system, rate, iterations, seed, train and test."""
    return pd.DataFrame(
        {
            "system": system,
            "rate": setting.rate,
            "iterations": count,
            "seed": seed,
            "train": round(own.train, 4),
            "test": round(own.test, 4),
        }
        for count in iterations
        for seed in seeds
        for system, own in Experiment(setting, count, seed).outcomes().items()
    )


def draw(found: pd.DataFrame) -> Figure:
    """Accuracy in training and testing by local iterations: means over the seeds, with one deviation."""
    figure = blank(height=4.0)
    worn = looks(SYSTEMS)
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), ("train", "test"), strict=True):
        light_frame(axes)
        for (system, rate), own in found.groupby(["system", "rate"], sort=False):
            each = own.groupby("iterations")[kind]
            mean, spread, quick = each.mean(), each.std(), rate > Setting.rate
            line: Any = {"color": worn[system].colour, "marker": worn[system].marker if quick else ""}
            label = f"{system}, rate {rate:g}" if kind == "train" else "_nolegend_"
            axes.plot(mean.index, mean, linestyle="--" if quick else "-", label=label, **line)
            if not quick:
                axes.fill_between(
                    mean.index, mean - spread, mean + spread, color=line["color"], alpha=0.18, linewidth=0
                )
        axes.set(xlabel="local iterations (band: one deviation)", ylabel=f"{kind}ing accuracy")
    legend(figure, [f"{system}, rate 0.001" for system in SYSTEMS])
    return figure


def main() -> None:
    single_thread()
    found = pd.concat([accuracies(Setting(), ITERATIONS, SEEDS), accuracies(FASTER, SHOWN, SEEDS)])
    print(found.groupby(["system", "rate", "iterations"])[["train", "test"]].mean().round(4).to_string())
    keep("fedlog_synthetic", found)
    if ASKED:
        write_png(DOCS / "fedlog_synthetic.png", draw(found))


if __name__ == "__main__":
    main()
