"""Accounts a study's runs alone, or in a shared ledger of all runs over the same records.

A study names the ledger by `[privacy] ledger`. All its arms and seeds are reserved there before the first of
them begins, and each again before its own first round. The ledger charges a run once: a second reservation of
the same run costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from securefl.accounting.figures import brief, counted, plain
from securefl.accounting.shared import Allotment, SharedLedger, SharedRuns, runs_of, shared_terms
from securefl.accounting.statements import identity_of
from securefl.algorithm.clients import Algorithm, specs_of
from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError, DataError
from securefl.core.release import PARTIES
from securefl.mechanisms.charges import allotment
from securefl.storage.files import write
from securefl.storage.texts import read_text
from securefl.study.arm import LEDGER, arm_folder, identity
from securefl.study.composition import composition, compositions
from securefl.study.config import Arm, Study
from securefl.study.data_section import path_of
from securefl.study.seeded import Digests, World

NOTE: Final = "accounting.json"
"""The file of a run folder with its `Choice`, if the run was chosen among others."""
ALONE: Final = "Accounted alone: other runs over the same records are not in this epsilon."
"""The sentence in reports of a run without a shared ledger. Each arm under each seed is a run of its own."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The private choice of a published run among others (`sweep.choice`).

    sentence: what its epsilon covers. epsilon: of run and choice together, by party, in place of the run's.
    """

    sentence: str
    epsilon: Mapping[str, float]

    def write(self, folder: Path) -> None:
        """Write it into the folder of the chosen run."""
        write(folder / NOTE, json.dumps(plain(self), indent=2) + "\n")


def choice_of(folder: Path) -> Choice | None:
    """The choice of the run in a folder; None for a run that was not chosen. Each reader of a run's epsilon
    asks it.

    Raises DataError for a damaged file.
    """
    path = folder / NOTE
    if not path.is_file():
        return None
    try:
        found = json.loads(read_text(path))
        epsilon = {party: float(found["epsilon"][party]) for party in PARTIES}
        return Choice(sentence=str(found["sentence"]), epsilon=epsilon)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: expected the epsilon of a choice, got: {type(error).__name__}: {error}. Restore it, or "
            f"remove {folder} and run the sweep again, which copies the chosen run anew."
        ) from None


def ledger_of(study: Study) -> Path | None:
    """The path of the study's shared ledger, relative to the study's own folder; None if it names none.

    Raises ConfigError if the path is relative, and the study has no folder.
    """
    named = study.privacy.ledger
    if named is None:
        return None
    return path_of(named, study.home, "[privacy] `ledger`:")


def sentence(study: Study, folder: Path | None = None) -> str:
    """A sentence for reports on what a run's epsilons cover.

    folder: the run's. It has a note if the run was chosen among others.
    """
    if folder is not None and (choice := choice_of(folder)) is not None:
        return choice.sentence
    if study.privacy.ledger is None:
        return ALONE
    return (
        f"Accounted in the ledger {study.privacy.ledger}: its budget of {study.privacy.budget:g} holds over "
        "all runs in it together. An epsilon here is of one arm and seed. For the epsilon of all runs: "
        f"securefl ledger runs {study.privacy.ledger}"
    )


def require_in_one_process(study: Study) -> None:
    """Raises ConfigError if a deployment's study names a shared ledger, or weights of one's run.

    Each party has its own ledger, which names sessions and not the run of an export.
    """
    if study.model.trained_on == "ledger":
        raise ConfigError(
            "[model] Expected no `weights` of the clients' own records if parties run on machines of their "
            'own, got trained_on = "ledger": a party cannot tell whether its ledger holds the run behind a '
            "file. Leave `weights` and `trained_on` out, or name weights of nobody here, and give this study "
            "the rounds of both runs."
        )
    if study.privacy.ledger is not None:
        raise ConfigError(
            "[privacy] Expected no `ledger` if parties run on machines of their own, got "
            f"{study.privacy.ledger!r}: a party's folder has one ledger, which counts all its sessions of "
            "all studies. Leave it out."
        )


def allotted(study: Study, arm: Arm, seed: int, made: tuple[Algorithm, Plan], run: str) -> Allotment:
    """All releases that one arm under one seed may make of any client. run: the identity of its ledger."""
    algorithm, plan = made
    return Allotment(
        run=run,
        what=f"{study.study.name}, {arm.name}, seed {seed}",
        charges=allotment(plan, specs_of(algorithm)),
    )


def reserve(
    study: Study, plan: Plan, marks: Digests, wants: Sequence[Allotment], begun: Container[str] = ()
) -> None:
    """Reserve runs of the study in its shared ledger: all, or none. A run that is in it costs nothing.

    marks: of the study's records and initial weights. begun: the runs from which values left.
    Raises BudgetExceeded if the runs would exceed the budget, and ConfigError if the ledger has other terms
    or records, lacks the run that trained the initial weights, or lacks one of `begun`: it is not the ledger
    that counted that run, and what else that one counts would be forgotten.
    """
    path, held = ledger_of(study), stored_runs(study, marks, plan) if wants else None
    if path is None or held is None:
        return
    if lost := [own.what for own in wants if own.run in begun and held.known(own.run) is None]:
        raise ConfigError(
            f"Expected {path} to hold {lost[0]}, which has begun, got a ledger without it: it was lost, "
            "moved, or put back from an older copy. Put the newest one back. Without it nothing counts what "
            "these records have spent."
        )
    with SharedLedger(path, shared_terms(plan.terms()), marks.records) as shared:
        shared.reserve(wants)


def reserve_all(study: Study, pairs: Iterable[tuple[Arm, World, Path]]) -> None:
    """Reserve several runs together. pairs: for each run its arm, its world, and its own ledger's folder.

    Raises the errors of `reserve`, before anything was trained or released.
    """
    wants, begun, plan, marks = [], set[str](), None, Digests()
    for arm, world, home in pairs:
        made = composition(study, arm, world)
        if plan is not None and world.marks.records != marks.records:
            raise ConfigError(
                "[privacy] Expected the same records under every seed with a `ledger`, got records that "
                "differ: "
                f"{study.data.source or 'the function from Python'} makes them from the seed. Run each seed "
                "as a study of its own, with a ledger of its own."
            )
        plan, marks = made[1], world.marks
        run, released = identity(home, plan)
        begun |= {run} if released else set()
        wants.append(allotted(study, arm, world.seed, made, run))
    if plan is not None:
        reserve(study, plan, marks, wants, begun)


def require_room(study: Study, world: World, made: Mapping[str, tuple[Algorithm, Plan]]) -> None:
    """Raises the errors of `reserve` for a study none of whose runs began. Only reads."""
    held = stored_runs(study, world.marks, made[study.arms[0].name][1])
    if held is not None and (refused := held.refusal(foreseen(study, made))) is not None:
        raise refused


def foreseen(study: Study, made: Mapping[str, tuple[Algorithm, Plan]]) -> list[Allotment]:
    """The allotments of all arms under all seeds, before any of them has a ledger of its own.

    made: the arms' algorithms and plans, by name. All seeds of an arm are assumed to have the same plan.
    """
    return [allotted(study, arm, seed, made[arm.name], f"{arm.name} {seed}") for arm, seed in study.pairs]


def begun(study: Study, folder: Path) -> dict[str, str]:
    """The identities of the runs in a run folder that have a ledger, by the names that `foreseen` gives."""
    return {
        f"{arm.name} {seed}": identity_of(path)
        for arm, seed in study.pairs
        if (path := arm_folder(folder, arm, seed) / LEDGER).is_file()
    }


def stored_runs(study: Study, marks: Digests, plan: Plan) -> SharedRuns | None:
    """The present contents of the study's shared ledger; None if it names none. Only reads.

    Raises ConfigError if the ledger has other terms or records, if it lacks the run that trained the initial
    weights (its charges would be missing from the epsilon of these records), if it has that run and the study
    calls it public, or if each seed of the study deals the records to other clients.
    """
    path = ledger_of(study)
    if path is None:
        return None
    if study.dealt_clients and len(study.study.seeds) > 1:
        raise ConfigError(
            f'[privacy] Expected one seed with a `ledger` of unit "client" and a partition that deals '
            f"records, got {len(study.study.seeds)}: each seed makes other clients of the same people, whose "
            "epsilons do not add up to any person's. Keep one of `seeds`, or deal by the people's own "
            '`client_column`, or take unit = "record" with a ledger of its own.'
        )
    held = runs_of(path, shared_terms(plan.terms()), marks.records)
    known = held.known(marks.behind) is not None
    if known and study.model.trained_on == "public":
        raise ConfigError(
            '[model] Expected `weights` of nobody here beside trained_on = "public", got those of the run '
            f"{marks.behind[:8]!r}, which {study.privacy.ledger} holds: it is of these clients. Set "
            'trained_on = "ledger".'
        )
    if marks.behind and study.model.trained_on == "ledger" and not known:
        raise ConfigError(
            f'[model] Expected `weights` of a run in the shared ledger beside trained_on = "ledger", got '
            f"those of the run {marks.behind[:8]!r}, which is not in {study.privacy.ledger}: its charges "
            "would be missing there. Name the `ledger` of that run under [privacy]. If it had none, run it "
            "again with this one."
        )
    return held


def forecast(study: Study, world: World) -> tuple[list[str], dict[str, Any]]:
    """The charges that the study would add to its shared ledger, in sentences and as a value for scripts."""
    if study.privacy.ledger is None:
        return [ALONE], {"ledger": None}
    made = compositions(study, world)
    plan = made[study.arms[0].name][1]
    held = stored_runs(study, world.marks, plan)
    assert held is not None
    wants = foreseen(study, made)
    refused = held.refusal(wants)
    parties = plan.adversaries
    before = {party: held.epsilon(party) for party in parties}
    after = {party: held.epsilon(party, wants) for party in parties}
    lines = [
        f"The ledger {study.privacy.ledger} holds {counted(len(held.entries), 'run')} over these records. "
        f"This study adds {len(wants)}, of a budget of {held.budget:g}:",
        *(
            f"  {party:11} ε {brief(before[party]):>6} before, {brief(after[party])} with it"
            for party in parties
        ),
    ]
    if refused is not None:
        lines.append(f"The ledger would refuse it. {refused}")
    return lines, {
        "ledger": {
            "path": study.privacy.ledger,
            "runs": len(held.entries),
            "adds": len(wants),
            "budget": held.budget,
            "epsilon_before": plain(before),
            "epsilon_after": plain(after),
            "refused": None if refused is None else str(refused),
        }
    }
