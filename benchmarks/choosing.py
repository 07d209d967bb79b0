"""What FedCor's choosing costs: CPU of the selection itself, over that of its rounds, in one run.

    SECUREFL_DATA=... python benchmarks/choosing.py [--rounds 60]

Fashion-MNIST, 1SPC, 100 clients (the packaged study `fedcor_fmnist_1spc`). The selection is the server's own
arithmetic: the embeddings' updates, the covariance and the greedy choice. What clients compute in answer to
it (losses, trials) is their round's, and is not counted as choosing. The models are not tested on the
server's records.

Prints, by kind of round, the medians in ms, and the share of the whole run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from securefl.algorithm.clients import Algorithm, Contribution, Population, State
from securefl.algorithm.queries import Floats, PerClient
from securefl.protocols.averaging import Averaging, Chosen, Selection
from securefl.protocols.fedcor import FedCor
from securefl.study.config import RuntimeSection, parse
from securefl.study.packaged import text_of
from securefl.study.run import run_arm
from securefl.study.world import build
from securefl.training import single_thread
from securefl.training.task import Problem


@dataclass(frozen=True, eq=False)
class Timed:
    """A selection that notes the CPU seconds it takes between what it asks, by round."""

    inner: Selection
    seconds: dict[int, float] = field(default_factory=dict)

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        return self.inner.contributions

    def watch(self, state: State) -> tuple[tuple[PerClient, ...], Mapping[str, Floats]]:
        return self.inner.watch(state)

    def choose(
        self, state: State, population: Population, count: int, number: int, rng: np.random.Generator
    ) -> Chosen:
        choosing, answers, spent = self.inner.choose(state, population, count, number, rng), None, 0.0
        while True:
            begun = time.process_time()
            try:
                query = next(choosing) if answers is None else choosing.send(answers)
            except StopIteration as ended:
                self.seconds[number] = spent + time.process_time() - begun
                chosen: tuple[Mapping[int, int], State] = ended.value
                return chosen
            spent += time.process_time() - begun
            answers = yield query

    def figures(self, state: State) -> Mapping[str, Floats]:
        return self.inner.figures(state)


@dataclass(frozen=True, kw_only=True)
class TimedFedCor:
    """FedCor's options, built around a timed selection."""

    options: FedCor
    seconds: dict[int, float]

    def build(self, problem: Problem) -> Algorithm:
        made = self.options.build(problem)
        assert isinstance(made, Averaging)
        return replace(made, selection=Timed(made.selection, self.seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    single_thread()
    study = parse(text_of("fedcor_fmnist_1spc"))
    arm = next(own for own in study.arms if isinstance(own.options, FedCor))
    options, choosing = arm.options, {}
    assert isinstance(options, FedCor)
    study = replace(
        study,
        study=replace(study.study, rounds=rounds, seeds=(1,), evaluate_every=rounds),
        runtime=RuntimeSection(workers=1),
    )
    options = replace(options, updates=max(0, (rounds - options.warm_up - 1) // options.interval))
    arm = replace(arm, options=TimedFedCor(options=options, seconds=choosing))
    world, whole = build(study, 1), {}
    begun = time.process_time()

    def tell(record: Mapping[str, int]) -> None:
        nonlocal begun
        whole[record["round"]], begun = time.process_time() - begun, time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        run_arm(study, arm, world, Path(folder), tell)
    max_rounds = arm.options.build(world.problem).selection.inner.max_rounds
    kinds = {
        "warm-up": [n for n in whole if n <= max_rounds.warm_up],
        "with a trial": [n for n in whole if max_rounds.trial(n)],
        "other": [n for n in whole if n > max_rounds.warm_up and not max_rounds.trial(n)],
    }
    print(f"{'rounds':14}{'of them':>8}{'round, ms':>12}{'choosing, ms':>14}{'share':>9}")
    for kind, numbers in kinds.items():
        ms = [1e3 * float(np.median([of[n] for n in numbers])) for of in (whole, choosing)]
        share = sum(choosing[n] for n in numbers) / sum(whole[n] for n in numbers)
        print(f"{kind:14}{len(numbers):8}{ms[0]:12.1f}{ms[1]:14.1f}{share:9.2%}")
    print(f"{'all':14}{len(whole):8}{'':26}{sum(choosing.values()) / sum(whole.values()):9.2%}")


if __name__ == "__main__":
    main()
