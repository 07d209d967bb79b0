"""FedLog beside LG-FedAvg on the FedLog paper's synthetic data: two clients, two features, one round.

    python benchmarks/fedlog_synthetic.py [--write]

Prints mean testing accuracy after 1 to 30 local iterations, over 6 seeds and in several settings. `--write`
keeps the figures in benchmarks/results/fedlog_synthetic.json, and draws docs/fedlog_synthetic.png.

The paper ("Synthetic", Fig. 1): 80 points, uniform in [-5, 5]^2, in two classes by the circle of radius
26/7. The half with the smaller x1 is client 0's, whose body has three layers, the rest client 1's, whose
body has two. Widths, optimizer, what a local iteration is, and the first head are left open. Here, for both
systems alike: hidden layers of 64 with ReLU and two linear features; the paper's training on MNIST (Adam,
rate 0.001, batches of 10), an iteration being a pass; the same initial bodies, batches and first head, which
is that of FedLog's exchange of statistics on the initial bodies (LG-FedAvg gets it for free). The outcome
hangs on these: with the rate 0.01 LG-FedAvg is ahead in the end, so the second table has other rates,
batches, widths, and a random first head, always the same for both systems. A testing point belongs to the
client on whose side of the split it lies; there are 2,000.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray
from scipy.special import softmax
from torch import nn

from securefl.algorithm.clients import Algorithm, ClientContext, Device, Population, State, run_round
from securefl.algorithm.queries import Answers, ByDraws, ClientState, CohortQuery, Floats, Total
from securefl.protocols.averaging import Averaging
from securefl.protocols.class_sums import Clipping
from securefl.protocols.fedlog.head import solve
from securefl.protocols.fedlog.options import FedLog, Heads
from securefl.protocols.lg_fedavg import LGFedAvg
from securefl.protocols.personal import Personal, SharedLayers
from securefl.storage import files
from securefl.training import LocalTraining, ModelConfig, single_thread
from securefl.training.heads import last_dense, with_head
from securefl.training.models import MLP
from securefl.training.task import Bodies, Problem

RADIUS, TRAINED, TESTED = 26 / 7, 80, 2000
ITERATIONS = (*range(1, 11), *range(12, 31, 2))
SHOWN, SEEDS = (1, 5, 10, 20, 30), tuple(range(6))
SYSTEMS = ("FedLog", "LG-FedAvg")
HERE = Path(__file__).resolve().parent

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


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the paper leaves open; `batch` 40 is all that a client has."""

    rate: float = 1e-3
    batch: int = 10
    width: int = 64
    start: Literal["statistics", "random"] = "statistics"

    def pair(self, iterations: int, seed: int) -> Pair:
        return Pair(
            Problem(
                model=Extractor(kind="mlp", hidden=(self.width, self.width), profiled_layer="0.fc1"),
                local=LocalTraining(
                    optimizer="adam", learning_rate=self.rate, epochs=iterations, batch_size=self.batch
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
        if self.setting.start == "random":
            total = standing_for(head_of(self.bodies.problem.module(self.bodies.problem.initial))).ravel()
        else:
            nothing = np.zeros(0, np.float32)
            total = sum(
                (self.heads.statistic.compute(self.context(c, nothing)).floats() for c in (0, 1)),
                np.zeros(6),
            )
        return total.astype(np.float32)

    @cached_property
    def first_head(self) -> Floats:
        return solve(self.first.astype(np.float64).reshape(2, 3))

    def fedlog(self) -> Outcome:
        algorithm = self.heads
        state, kept = self.round(algorithm, replace(algorithm.start(), broadcast=self.first))
        head = solve(state.broadcast.astype(np.float64).reshape(2, 3))
        return self.outcome(algorithm, state, head, kept)

    def lg_fedavg(self) -> Outcome:
        problem, part = self.bodies.problem, Personal(self.bodies, SharedLayers(layers=1, side="head"))
        built = LGFedAvg(layers=1).build(problem)
        assert isinstance(built, Averaging)
        algorithm = replace(built, part=part)
        first = part.taken(0, with_head(problem.module(problem.initial), self.first_head))
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


def standing_for(head: Floats) -> Floats:
    """A statistic whose exact head is this one: R_y = N p_y eta_y / 2, and N = 1 + the sum of column 0."""
    r = softmax(np.sum(head**2, axis=1) / 4)[:, None] * head / 2
    statistic: Floats = r / (1 - r[:, 0].sum())
    return statistic


# The figures --------------------------------------------------------------------------------------

Accuracies = dict[str, dict[str, list[list[float]]]]
"""By system and by "train" and "test": one row for each number of iterations, one column for each seed."""


def accuracies(setting: Setting, iterations: tuple[int, ...], seeds: tuple[int, ...]) -> Accuracies:
    found: Accuracies = {system: {"train": [], "test": []} for system in SYSTEMS}
    for count in iterations:
        outcomes = [Experiment(setting, count, seed).outcomes() for seed in seeds]
        for system in SYSTEMS:
            found[system]["train"].append([round(o[system].train, 4) for o in outcomes])
            found[system]["test"].append([round(o[system].test, 4) for o in outcomes])
    return found


def variations() -> list[Setting]:
    kinds = (Setting(), Setting(batch=TRAINED // 2), Setting(start="random"))
    grid = [replace(kind, rate=rate) for kind in kinds for rate in (1e-3, 1e-2, 1e-1)]
    return [*grid, Setting(width=16), Setting(width=128)]


def print_variations(rows: list[tuple[Setting, Accuracies]]) -> None:
    print(
        "\nMean testing accuracy in %, FedLog / LG-FedAvg, by local iterations; * where FedLog is not ahead"
    )
    print(f"{'first head':<11}{'batch':>6}{'rate':>7}{'width':>6}", *(f"{count:>13}" for count in SHOWN))
    for setting, found in rows:
        name = f"{setting.start:<11}{setting.batch:>6}{setting.rate:>7g}{setting.width:>6}"
        print(name, *_cells(*(np.mean(found[system]["test"], axis=1) for system in SYSTEMS)))


def _cells(ours: Floats, theirs: Floats) -> list[str]:
    pairs = zip(100 * ours, 100 * theirs, strict=True)
    return [f"{a:>5.1f} /{b:>5.1f}{'*' if round(a - b, 1) <= 0 else ' '}" for a, b in pairs]


# The picture --------------------------------------------------------------------------------------

SYSTEM_COLOURS = dict(zip(SYSTEMS, ("#009E73", "#CC79A7"), strict=True))
FASTER = Setting(rate=1e-2)


def draw(found: Accuracies, faster: Accuracies) -> Figure:
    """Accuracy in training and testing by local iterations.

    found, faster: at all ITERATIONS, and at those SHOWN with ten times the rate.
    """
    figure = Figure(figsize=(9.0, 4.0), dpi=110, layout=ConstrainedLayoutEngine(w_pad=0.1))
    for axes, kind in zip(figure.subplots(1, 2), ("train", "test"), strict=True):
        _accuracy_panel(axes, found, faster, kind)
        axes.set_title(f"{kind}ing accuracy, mean of {len(SEEDS)} seeds", fontsize=11, loc="left")
    return figure


def _accuracy_panel(axes: Axes, found: Accuracies, faster: Accuracies, kind: str) -> None:
    for (system, colour), style in zip(SYSTEM_COLOURS.items(), ("-", "--"), strict=True):
        line: Any = {"color": colour, "linestyle": style}
        values = np.array(found[system][kind])
        mean, spread = values.mean(axis=1), values.std(axis=1, ddof=1)
        axes.plot(ITERATIONS, mean, **line, linewidth=2.2, label=f"{system}, rate {Setting().rate}")
        quick: Any = {**line, "linewidth": 1.0, "marker": "s", "markersize": 4}
        quick["label"] = f"{system}, rate {FASTER.rate}"
        axes.plot(SHOWN, np.mean(faster[system][kind], axis=1), **quick)
        axes.fill_between(ITERATIONS, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E3E3E3", linewidth=0.8)
    axes.set(xlabel="local iterations (band: one deviation)", ylabel="accuracy (share, 0 to 1)")
    axes.legend(fontsize=8.5, frameon=False, loc="upper left", ncols=2, columnspacing=1.0, handlelength=1.8)
    axes.set_ylim(0.48, 1.12)
    axes.set_yticks(np.arange(0.5, 1.01, 0.1))


# The run ------------------------------------------------------------------------------------------


def main() -> None:
    single_thread()
    found = accuracies(Setting(), ITERATIONS, SEEDS)
    rows = [(setting, accuracies(setting, SHOWN, SEEDS)) for setting in variations()]
    print_variations(rows)
    if "--write" in sys.argv:
        result = {
            "command": "python benchmarks/fedlog_synthetic.py --write",
            "seeds": SEEDS,
            "setting": asdict(Setting()),
            "iterations": ITERATIONS,
            "accuracies": found,
            "variations": {
                "iterations": SHOWN,
                "rows": [{"setting": asdict(setting), "accuracies": own} for setting, own in rows],
            },
        }
        files.write(HERE / "results" / "fedlog_synthetic.json", json.dumps(result, indent=1) + "\n")
        picture = draw(found, dict(rows)[FASTER])
        picture.savefig(HERE.parent / "docs" / "fedlog_synthetic.png", metadata={"Software": None})


if __name__ == "__main__":
    main()
