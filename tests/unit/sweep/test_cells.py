"""Cells of a sweep: a study for every entry of the grid, in a folder of its own."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from support.every import every
from support.private_studies import DPSGD
from support.tiny_study import FEDAVG, text, world
from support.tiny_sweep import ARMS, EPSILONS, LISTS, NOISED, sweep

from securefl.core.errors import ConfigError
from securefl.study.composition import composition
from securefl.study.config import parse
from securefl.sweep.cells import has_sweep, in_force, parse_sweep, show

CLIENTS = '"data.clients" = [5, 6]'
ONE = '"privacy.epsilon" = [1.0]'


def test_the_grid_is_taken_for_every_entry_of_the_list() -> None:
    found = sweep(EPSILONS + '\n"study.rounds" = [1, 2]', *LISTS)

    assert found.keys == ("privacy.calibration", "privacy.epsilon", "study.rounds")
    assert len(found.cells) == 2 * 3 * 2
    seen = [(c.study.privacy.calibration, c.study.privacy.epsilon, c.study.study.rounds) for c in found.cells]
    assert seen[:3] == [("exact", 1.0, 1), ("exact", 1.0, 2), ("exact", 4.0, 1)]
    assert seen[-1] == ("paper", math.inf, 2)
    assert found.cells[0].name == "calibration = exact, epsilon = 1, rounds = 1"
    assert found.cells[-1].folder == "calibration-paper-epsilon-inf-rounds-2"
    assert len({cell.folder for cell in found.cells}) == 12


def test_a_cell_is_a_study_of_its_own() -> None:
    cell = sweep(EPSILONS).cells[1]
    again = parse(cell.study.text)
    assert again == cell.study
    assert again.privacy.epsilon == 4.0
    assert again.study.seeds == (3,)
    assert "sweep" not in cell.study.text


def test_an_arm_key_reaches_every_arm_and_tables_grow_where_there_are_none() -> None:
    found = sweep('"arm.clip.bound" = [0.5, 2.0]\n"network.dropout" = [0.25]\n' + EPSILONS)
    assert [arm.options.clip.bound for arm in found.cells[-1].study.arms] == [2.0, 2.0]  # type: ignore[attr-defined]
    assert [arm.options.clip.kind for arm in found.cells[-1].study.arms] == ["unit-l2", "bounded"]  # type: ignore[attr-defined]
    assert found.cells[0].study.network.dropout == 0.25
    assert "dropout" not in found.cells[0].name, "what all cells share does not set one apart"


def test_folders_of_values_with_one_slug_differ() -> None:
    plain = text(FEDAVG)
    found = sweep('"study.name" = ["a b", "a-b", "A B"]', study=plain)
    assert [cell.folder for cell in found.cells] == ["name-a-b", "name-a-b-2", "name-a-b-3"]
    long = sweep(f'"study.name" = ["{"x" * 199}", "{"x" * 200}"]', study=plain)
    assert all(len(cell.folder) < 110 for cell in long.cells)
    assert len({cell.folder for cell in long.cells}) == 2


@every(
    ("section", "part"),
    [
        ('[sweep.grid]\n"privcy.epsilon" = [1.0]', "Unknown section [privcy] (did you mean `privacy`?)"),
        ('[sweep.grid]\n"arm.clipp.kind" = ["none"]\n' + EPSILONS, "Unknown key `clipp`"),
        (
            '[sweep.grid]\n"privacy.epsilon" = [1.0]\n"privacy.epsilon.x" = [1.0]',
            "Expected tables along the path",
        ),
        ('[sweep.grid]\n"privacy.epsilon" = [1.0, 1.0]', "epsilon = 1 twice"),
        (f'[sweep.grid]\n{EPSILONS}\n[[sweep.list]]\n"privacy.epsilon" = 1.0', "Keep one of them"),
        ('[sweep]\npanels = ["data.clients"]', "Expected a table [sweep.grid] or tables [[sweep.list]]"),
        (
            f'[sweep]\npanels = ["data.clients"]\n[sweep.grid]\n{EPSILONS}',
            "(none here), got ['data.clients']",
        ),
        (f'[sweep]\npanels = ["privacy.epsilon"]\n[sweep.grid]\n{EPSILONS}', "is the axis of each panel"),
        (f'[sweep]\npanels = "data.clients"\n[sweep.grid]\n{CLIENTS}', "`panels`: Expected a list"),
        (f"[sweep]\npanels = [[]]\n[sweep.grid]\n{CLIENTS}", "`panels`: Expected text in quotes, got []"),
        (
            f'[sweep]\npanels = ["data.clients", "data.clients"]\n[sweep.grid]\n{CLIENTS}',
            "Expected each key once in panels",
        ),
    ],
)
def test_what_the_study_would_refuse_names_the_cell(section: str, part: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(part)):
        parse_sweep(NOISED + ARMS + section)


def test_a_mistake_is_told_once_with_the_cells_that_have_it() -> None:
    """Of 200 cells: one mistake is in all, one follows from a value, and of others ten are enough."""
    grid = f'"study.seeds" = {[[seed] for seed in range(20)]}\n"study.rounds" = {[*range(10)]}\n{ONE}'
    with pytest.raises(ConfigError) as caught:
        sweep(grid, study=(NOISED + ARMS).replace("learning_rate", "lr"))
    first, second = str(caught.value).split("\n")
    assert first.startswith("In the 20 cells with rounds = 0: [study] Expected rounds in")
    assert second.startswith("In all 200 cells: [local] Unknown key `lr` (did you mean `learning_rate`?)")
    with pytest.raises(ConfigError, match=r"^In the cell clients = 0: .*(\n.*){9}\nAnd 10 more"):
        sweep(f'"data.clients" = {[-clients for clients in range(20)]}\n{ONE}')


def test_a_sweep_is_told_from_a_study() -> None:
    assert has_sweep(NOISED + ARMS + "[sweep.grid]\n" + EPSILONS)
    assert not has_sweep(NOISED + ARMS)
    assert not has_sweep("x = [")


def test_values_in_force_include_defaults() -> None:
    found = sweep("", '"privacy.epsilon" = 1.0\n"arm.clip.kind" = "bounded"', '"privacy.epsilon" = 2.0')
    first, second = found.cells
    unit, bounded = second.study.arms
    assert in_force(first, "arm.clip.kind", first.study.arms[0]) == "bounded"
    assert [in_force(second, "arm.clip.kind", arm) for arm in (unit, bounded)] == ["unit-l2", "bounded"]
    assert in_force(second, "privacy.calibration", unit) == "exact"
    assert in_force(second, "arm.protocol", unit) == "fedlog"
    assert in_force(second, "arm.nothing.here", unit) is None
    assert show(in_force(second, "arm.clip", unit)) == "kind unit-l2, bound 1, digits 10"


@every(
    ("value", "shown"),
    [
        (math.inf, "inf"),
        (0.5, "0.5"),
        (3, "3"),
        (True, "true"),
        ("x", "x"),
        (None, "not set"),
        ([84, 2], "[84, 2]"),
    ],
)
def test_values_are_shown_short(value: Any, shown: str) -> None:
    assert show(value) == shown


def test_a_grid_of_more_cells_than_anybody_runs_is_refused_before_one_is_made() -> None:
    seeds = ", ".join(f"[{seed}]" for seed in range(1000))
    grid = f'"study.seeds" = [{seeds}]\n'
    for other in ("data.clients", "local.epochs", "local.batch_size", "model.hidden"):
        grid += f'"{other}" = {list(range(1, 101))}\n'
    with pytest.raises(ConfigError, match="got 100,000,000,000;"):
        sweep(grid)


def test_an_infinite_epsilon_is_the_run_without_noise() -> None:
    trained = text(FEDAVG, non_private="[]", extra=DPSGD.replace("noise_multiplier = 1.2", "epsilon = 2.0"))
    trained = trained.replace("budget = inf", "budget = 9.0").replace("replace-one", "add-remove")
    noised, bare = (cell.study for cell in sweep('"dpsgd.epsilon" = [1.0, inf]', study=trained).cells)
    assert (noised.dpsgd is None, noised.privacy.budget, noised.claims) == (False, 9.0, True)
    assert (bare.dpsgd, bare.privacy.budget, bare.claims) == (None, math.inf, False)
    assert bare.noised, "its test records are those of the other cells"
    here = world(bare)
    algorithm, plan = composition(bare, bare.arms[0], here)
    assert plan.noise == "none"
    assert set(plan.non_private) == {own.spec.name for own in algorithm.contributions}
    given = sweep('"privacy.epsilon" = [1.0, inf]', study=NOISED + ARMS + DPSGD).cells[1].study
    assert given.dpsgd is not None, "its noise was given, and does not follow from epsilon"
