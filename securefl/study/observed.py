"""The observer's measures at the end of a run: each arm's model, and models that no party of the run has.

The pooled model is trained on the records of all clients together, without noise. Each client alone is a
model trained on one client's records, without noise. A simulation has all records in one process, so it can
train both for comparison. No server and no client of the run could, and no epsilon covers them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, Final

import numpy as np

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.queries import ClientState, Float32s
from securefl.core.errors import DataError
from securefl.core.streams import stream
from securefl.engine.party.computing import Records
from securefl.storage.files import write
from securefl.storage.private_folder import PRIVATE, json_text, private_folder
from securefl.study.arm import ArmRun, arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.composition import composition
from securefl.study.config import Study
from securefl.study.interruption import Stop
from securefl.study.seeded import World
from securefl.training.evaluation import constant_accuracy, outputs_on
from securefl.training.jobs import Trainer, TrainingJob, usable
from securefl.training.learnt import Exportable
from securefl.training.measures import Measures, accuracy_of, measured
from securefl.training.run_jobs import one_by_one
from securefl.training.task import Problem

FILE: Final = f"{PRIVATE}/measures.json"
ARM, POOLED, ALONE, CONSTANT = "arm", "pooled", "alone", "constant"
NAMES: Final = {
    POOLED: "all records in one place",
    ALONE: "each client alone",
    CONSTANT: "one constant answer",
}
"""The names of the rows that are no arm's."""
WHOSE: Final = (
    "All records in one place, and each client alone, are models that the observer of this simulation "
    "trained without noise. No party of the run has them, and no epsilon covers them."
)
MOST_STEPS: Final = 20_000
"""The most mini-batches of the pooled model's training, and of those of all clients alone together."""
MOST_ALONE: Final = 50
"""The most clients that are trained alone. Of more clients, so many are drawn."""
Watch = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The measures of one model, or of several of one kind, under one seed.

    name: the arm, or a name of `NAMES`. kind: "arm", "pooled", "alone" or "constant". models: "global" if
    `measures` are of one model on the server's records; "personal" if they are of each client's own model on
    records like its own. For clients alone it is the mean accuracy over the clients, on the server's records.
    clients: for each tested client, the accuracy on test records like its own.
    at_clients: the mean of these, weighted by the numbers of records.
    """

    name: str
    kind: str
    seed: int
    models: str
    measures: Measures
    clients: Sequence[float] = ()
    at_clients: float = nan


def observed(
    study: Study,
    runs: Sequence[ArmRun],
    folder: Path,
    *,
    baselines: bool,
    stop: Stop,
    watch: Watch = lambda what, done, total: None,
) -> tuple[Observed, ...]:
    """The measures of finished arms and of the observer's own models. They are computed once and kept.

    folder: the run folder, whose file `FILE` keeps them. baselines: whether the observer trains its own
    models if the study does not say. watch: called with (name, finished, all) for each pass of a training.
    stop: asked after each pass. Raises DataError if the file is damaged or of another study.
    """
    if (kept := stored(study, folder)) is not None:
        return kept
    found: list[Observed] = []
    for seed in dict.fromkeys(run.world.seed for run in runs):
        own = [run for run in runs if run.world.seed == seed]
        found += [measure for run in own if (measure := _of_arm(study, run, folder)) is not None]
        found += _of_observer(study, own[0].world, baselines, stop, watch)
        found.append(_constant(own[0].world))
    private_folder(folder)
    content = {"study": study.digest, "measures": [_written(own) for own in found]}
    write(folder / FILE, json_text(content))
    return tuple(found)


def stored(study: Study, folder: Path) -> tuple[Observed, ...] | None:
    """The measures that a run folder keeps, or None before they are written.

    Raises DataError if the file is damaged or of another study.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    again = f"Remove it, and run the study again: securefl run {folder / 'study.toml'} --out {folder}"
    try:
        content = json.loads(path.read_bytes())
        of, measures = content["study"], tuple(_read(own) for own in content["measures"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}). {again}") from None
    if of != study.digest:
        raise DataError(f"Expected the measures of this study in {path}, got those of another one. {again}")
    return measures


def _written(own: Observed) -> dict[str, Any]:
    """As a value for JSON, which has no nan."""
    flat = {**vars(own), **vars(own.measures)}
    del flat["measures"]
    return {name: None if value != value else value for name, value in flat.items()}


def _read(content: Mapping[str, Any]) -> Observed:
    known: dict[str, Any] = {name: nan if value is None else value for name, value in content.items()}
    measures = Measures(**{own.name: known.pop(own.name) for own in fields(Measures)})
    return Observed(**known, measures=measures)


def _of_arm(study: Study, run: ArmRun, folder: Path) -> Observed | None:
    """The measures of an arm's model after its last round. None if its protocol gives no model."""
    algorithm, _ = composition(study, run.arm, run.world)
    if not isinstance(algorithm, Exportable):
        return None
    with Checkpoint(checkpoint_file(arm_folder(folder, run.arm, run.world.seed))) as checkpoint:
        state, _ = checkpoint.load()
        kept = checkpoint.kept() if run.personal else {}
    if state is None:
        return None

    def model(client: int | None, own: ClientState) -> _Model:
        learnt = algorithm.learnt(state, client, own)
        module = learnt.module()
        return lambda x, y: outputs_on(module, x, y, learnt.problem.kind)

    if not run.personal:
        return _of_one(run.world, model(None, {}), ARM, name=run.arm.name)
    each = [model(client, kept.get(client, {})) for client in range(len(run.world.records))]
    return _of_each(run.world, each, name=run.arm.name)


def _of_observer(study: Study, world: World, baselines: bool, stop: Stop, watch: Watch) -> Iterator[Observed]:
    section = study.measures
    # One pass a round, without noise and without a pull to the start.
    local = replace(world.problem.local, epochs=1, steps=None, proximal=0.0)
    # The observer's models are whole ones, which are summed with no other.
    whole: Any = replace(world.problem.model, buffers="averaged")  # type: ignore[type-var]
    problem = replace(world.problem, private=None, local=local, model=whole)
    x, y = (np.concatenate(column) for column in zip(*world.records, strict=True))
    passes, steps = section.over(study.study.rounds, study.local), problem.local.batches(len(x))
    passes = max(1, min(passes, MOST_STEPS // max(1, steps)))
    trained = partial(_trained, problem, world.seed, stop, watch)
    if section.pooled if section.pooled is not None else baselines:
        # Not side by side with anything: a slot for each client would be computed for one.
        (model,) = trained(POOLED, {0: (x, y)}, passes, one_by_one).values()
        yield _of_one(world, model, POOLED)
    if section.alone if section.alone is not None else baselines:
        clients = list(range(len(world.records)))
        if len(clients) > MOST_ALONE:
            drawn = stream(world.seed, "alone").choice(len(clients), MOST_ALONE, replace=False)
            clients = np.sort(drawn).tolist()
        own = {client: world.records[client] for client in clients}
        # As many mini-batches for each client as for the pooled model, as far as the limit allows.
        batches = max(1, sum(problem.local.batches(len(x)) for x, _ in own.values()))
        passes = max(1, min(passes * steps * len(own), MOST_STEPS) // batches)
        models = trained(ALONE, own, passes, study.runtime.trainer(()))
        x, y = problem.server_x, problem.server_y
        on_server = (
            [accuracy_of(model(x, y), y, problem.kind) for model in models.values()] if len(x) else nan
        )
        yield _made(world, ALONE, Measures(accuracy=float(np.mean(on_server))), _tested(world, models))


_Model = Callable[[Any, Any], Any]


def _reading(problem: Problem, vector: Float32s | None) -> _Model:
    """The outputs of the model with these values. They are nan if its training diverged."""
    if vector is None:
        return lambda x, y: np.full((len(x), problem.outputs), nan)
    return lambda x, y: outputs_on(problem.to_read(vector), x, y, problem.kind)


def _trained(
    problem: Problem,
    seed: int,
    stop: Stop,
    watch: Watch,
    kind: str,
    records: Mapping[int, Records],
    passes: int,
    trainer: Trainer,
) -> dict[int, _Model]:
    """A model for each client, after these passes over its records. Its outputs are nan if it diverged."""
    vectors: dict[int, Float32s | None] = dict.fromkeys(records, problem.initial)
    for number in range(1, passes + 1):
        fits = {}
        for client, vector in vectors.items():
            if vector is not None:
                x, y = records[client]
                context = ClientContext(
                    client=client,
                    round=number,
                    x=x,
                    y=y,
                    broadcast=problem.initial,
                    public={},
                    rng=stream(seed, kind, number, client),
                    count=len(x),
                )
                fits[client] = TrainingJob(problem=problem, start=vector, context=usable(problem, context))
        for client, result in zip(fits, trainer(list(fits.values())), strict=True):
            vectors[client] = None if isinstance(result, DataError) else result
        watch(NAMES[kind], number, passes)
        stop.check()
    return {client: _reading(problem, vector) for client, vector in vectors.items()}


Tested = Sequence[tuple[Any, Any]]
"""For each tested client, its model's outputs on records like its own, and the targets."""


def _tested(world: World, models: Mapping[int, _Model]) -> Tested:
    tests = [(model, *world.tests[client]) for client, model in models.items()]
    return [(model(x, y), y) for model, x, y in tests if len(x)]


def _made(
    world: World, kind: str, measures: Measures, tested: Tested, *, name: str = "", models: str = "global"
) -> Observed:
    """Measures with the accuracy of each tested client. Without outputs it is that of a constant answer."""
    task = world.problem.kind
    clients = [
        constant_accuracy(y, task) if outputs is None else accuracy_of(outputs, y, task)
        for outputs, y in tested
    ]
    return Observed(
        name=name or NAMES[kind],
        kind=kind,
        seed=world.seed,
        models=models,
        measures=measures,
        clients=clients,
        at_clients=float(np.average(clients, weights=[len(y) for _, y in tested])) if tested else nan,
    )


def _of_one(world: World, model: _Model, kind: str, *, name: str = "") -> Observed:
    """The measures of one model for all: on the server's records, and on each client's kind of records."""
    x, y = world.problem.server_x, world.problem.server_y
    measures = measured(model(x, y), y, world.problem.kind) if len(x) else Measures()
    return _made(
        world, kind, measures, _tested(world, dict.fromkeys(range(len(world.tests)), model)), name=name
    )


def _of_each(world: World, models: Sequence[_Model], *, name: str) -> Observed:
    """The measures of each client's own model, on records like its own, all clients together."""
    tested, measures = _tested(world, dict(enumerate(models))), Measures()
    if tested:
        outputs, targets = (np.concatenate(column) for column in zip(*tested, strict=True))
        measures = measured(outputs, targets, world.problem.kind)
    return _made(world, ARM, measures, tested, name=name, models="personal")


def _constant(world: World) -> Observed:
    """The accuracy of the best constant answer."""
    y = world.problem.server_y
    accuracy = constant_accuracy(y, world.problem.kind) if len(y) else nan
    own = [(None, y) for x, y in world.tests if len(x)]
    return _made(world, CONSTANT, Measures(accuracy=accuracy), own)
