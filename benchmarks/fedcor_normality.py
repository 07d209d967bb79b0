"""FedCor's Figures 12 and 13: are loss changes of uniform cohorts normal, along their main directions?

    SECUREFL_DATA=... python benchmarks/fedcor_normality.py [--write]

After the warm-up every client trains once from the model. A uniform cohort moves the model by the mean
of its clients' updates, and with it the mean loss of each client on its own first records. The principal
components of these changes over many cohorts are compared with the normal law of their mean and variance.
Smaller than the paper on CIFAR-10: `SETTINGS`. `--write` keeps a table in benchmarks/results, and the figure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tomli_w
from kept import ASKED, DOCS, keep
from numpy.typing import NDArray
from representations import histograms, normality
from studies import played

from securefl.algorithm import ClientContext
from securefl.core.streams import stream
from securefl.protocols.fedcor import FedCor
from securefl.report.tables import write_png
from securefl.storage.texts import toml
from securefl.study.config import Arm, Study, parse
from securefl.study.packaged import packaged
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.sweep.cells import put
from securefl.training import record_losses, single_thread
from securefl.training.jobs import TrainingJob
from securefl.training.run_jobs import run_job

COMPONENTS = 4
SEED = 1


class Setting(NamedTuple):
    """A packaged study with changes.

    rounds: before the cohorts are drawn. records: of each client, whose mean loss is its loss.
    """

    study: str
    changes: dict[str, Any]
    rounds: int
    cohorts: int
    records: int


SETTINGS = {
    "Fashion-MNIST, 1SPC": Setting("fedcor_fmnist_1spc", {}, 15, 500, 10),
    "CIFAR-10, 2SPC": Setting("fedcor_cifar10_2spc", {"data.records": 5000, "local.steps": 4}, 8, 200, 3),
}


def study_of(setting: Setting) -> Study:
    table = toml(packaged()[setting.study])
    for key, value in setting.changes.items():
        put(table, key, value)
    return parse(tomli_w.dumps(table))


def changes(study: Study, arm: Arm, world: World, setting: Setting) -> NDArray[np.float64]:
    """The change of each client's loss by cohort, (cohorts, N)."""
    assert isinstance(arm.options, FedCor)
    _, state = played(study, arm, world, rounds=setting.rounds)
    problem, model = world.under(arm.local).problem, state.broadcast
    updates = []
    for client, (x, y) in enumerate(world.records):
        context = ClientContext(
            client=client,
            round=setting.rounds,
            x=x,
            y=y,
            broadcast=model,
            public={},
            rng=stream(SEED, "normality", client),
        )
        trained = run_job(TrainingJob(problem=problem, start=model, context=context))
        updates.append(np.asarray(trained, np.float64) - model)
    seen = [(x[: setting.records], y[: setting.records]) for x, y in world.records]
    x, y = (np.concatenate(side) for side in zip(*seen, strict=True))
    ends = np.cumsum([len(own) for own, _ in seen])[:-1]

    def losses(vector: NDArray[Any]) -> NDArray[np.float64]:
        found = record_losses(problem.module(vector.astype(np.float32)), x, y, problem.loss)
        return np.array([own.mean() for own in np.split(found, ends)])

    rng, count = stream(SEED, "cohorts"), round(arm.options.fraction * len(updates))
    before, found = losses(model), []
    for _ in range(setting.cohorts):
        cohort = rng.choice(len(updates), count, replace=False)
        found.append(losses(model + np.mean([updates[k] for k in cohort], axis=0)) - before)
    return np.array(found)


def components(found: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first principal components of the rows, (rows, COMPONENTS), and their shares of the variance."""
    left, sizes, _ = np.linalg.svd(found - found.mean(axis=0), full_matrices=False)
    return (left * sizes)[:, :COMPONENTS], (sizes**2 / np.sum(sizes**2))[:COMPONENTS]


def main() -> None:
    single_thread()
    tables, drawn = [], {}
    for name, setting in SETTINGS.items():
        study = study_of(setting)
        (arm,) = (arm for arm in study.arms if isinstance(arm.options, FedCor))
        scores, shares = components(changes(study, arm, build(study, SEED), setting))
        drawn[name] = scores
        table = normality(scores).rename(columns={"element": "component"})
        table.insert(0, "setting", name)
        tables.append(table.assign(variance=shares, cohorts=setting.cohorts))
    whole = pd.concat(tables, ignore_index=True).round(4)
    print(whole.to_string(index=False))
    keep("fedcor_normality", whole)
    if ASKED:
        write_png(DOCS / "fedcor_normality.png", histograms(drawn, range(COMPONENTS), "component"))


if __name__ == "__main__":
    main()
