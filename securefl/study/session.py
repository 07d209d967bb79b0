"""A run folder: claim it for a study, run every arm, write the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from securefl.data.files import replacing
from securefl.errors import ConfigError
from securefl.plan import Plan
from securefl.rounds import Algorithm
from securefl.study import results, world
from securefl.study.config import Arm, Study, near, parse
from securefl.study.interruption import Interruption, Stop
from securefl.study.run import ArmRun, composition, run_arm
from securefl.training import single_thread

CONFIG = "study.toml"


def claim(folder: Path, study: Study) -> None:
    """Make the folder this study's, or find that it is already. Raises ConfigError if it is another's."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / CONFIG
    if config.exists():
        if config.read_text(encoding="utf-8") != study.text:
            raise ConfigError(
                f"{folder} holds a run of another configuration; choose another folder with --out, "
                f"or resume that one with: securefl run {config} --out {folder}"
            )
        return
    with replacing(config) as target:
        target.write(study.text.encode())


def run_study(
    study: Study,
    folder: Path,
    tell: Callable[[Arm, int, Mapping[str, Any]], None],
    *,
    stop: Stop | None = None,
) -> tuple[results.Results, Path]:
    """Run or resume all arms under all seeds in `folder`. Returns the results and the report's path.

    tell: called with (arm, seed, record) for every finished round, those of an earlier run included.
    stop: raises Interrupted after a round where it is asked to; the folder then goes on with the next one.
    """
    stop = stop or Interruption()
    single_thread()
    first = world.build(study, study.study.seeds[0])
    # What stops any arm is told before one trains or the folder is taken.
    arms = {arm.name: composition(study, arm, first) for arm in study.arms}
    require_known(study, [algorithm for algorithm, _ in arms.values()])
    claim(folder, study)
    runs: list[ArmRun] = []
    for seed in study.study.seeds:
        here = first if seed == first.seed else world.build(study, seed)
        for arm in study.arms:
            runs.append(run_arm(study, arm, here, folder, _for(tell, arm, seed), stop=stop))
    with stop.finishing("the report"):
        return _written(study, runs, arms, folder, first.problem.changes)


def require_known(study: Study, algorithms: Iterable[Algorithm]) -> None:
    """Raises ConfigError for a value that no arm sends: a misspelt name would protect nothing."""
    names = sorted({statistic.sends.name for own in algorithms for statistic in own.statistics})
    for name in study.privacy.unprotected:
        if name not in names:
            raise ConfigError(
                f"[privacy] unprotected names {name!r}{near(name, names)}, which no arm sends; "
                f"they send {', '.join(names)}."
            )


def reopen(folder: Path) -> tuple[results.Results, Path]:
    """Write the report of a finished run again. Raises ConfigError where the run is not finished."""
    config = folder / CONFIG
    if not config.is_file():
        raise ConfigError(f"{folder} is no run folder: it has no {CONFIG}.")
    study = parse(config.read_text(encoding="utf-8"))
    unfinished = [
        arm.name
        for seed in study.study.seeds
        for arm in study.arms
        if results.finished_rounds(folder, arm, seed) < study.study.rounds
    ]
    if unfinished:
        raise ConfigError(
            f"{', '.join(dict.fromkeys(unfinished))}: not finished; go on with: "
            f"securefl run {config} --out {folder}"
        )
    return run_study(study, folder, lambda arm, seed, record: None)


def _for(
    tell: Callable[[Arm, int, Mapping[str, Any]], None], arm: Arm, seed: int
) -> Callable[[Mapping[str, Any]], None]:
    return lambda record: tell(arm, seed, record)


def _written(
    study: Study,
    runs: list[ArmRun],
    arms: Mapping[str, tuple[Algorithm, Plan]],
    folder: Path,
    changes: Sequence[str],
) -> tuple[results.Results, Path]:
    collected = results.collect(study, runs)
    card = results.privacy_card(collected, arms)
    reproduce = f"securefl run {folder / CONFIG} --out {folder}-again"
    return collected, results.write(study, collected, card, folder, reproduce, changes)
