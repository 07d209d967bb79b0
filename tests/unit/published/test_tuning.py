"""Tuned tables: as many candidates for each system, chosen by records that measure nothing."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from support.every import every
from support.tiny_table import ROWS, metrics, part, table

from securefl.core.errors import ConfigError
from securefl.protocols.tables import adds, fedcor, fedlog, fedprof_v1, fedprof_v2
from securefl.published import comparison, runs
from securefl.published.runs import choosing
from securefl.published.table import Axis, Measure, Table, differences
from securefl.study.config import parse
from securefl.study.world import build

ALPHA = Axis(key="alpha", values=(10.0, 25.0, 50.0), below=(1.0, 5.0))
AVG, OURS = ROWS[0], replace(ROWS[1], tunes=ALPHA)
TABLE = table(replace(part(seeds="[1, 2, 3]"), rows=(AVG, OURS)))
PART = TABLE.parts[0]
FIRST = choosing(TABLE)
assert FIRST is not None


def tried(of: Table, **best: float) -> dict[str, pd.DataFrame]:
    """Runs of all candidates of a choosing table: 0.4, but for those whose arm ends in these words."""
    found = {}
    for own in of.parts:
        arms = [row.arm for row in own.rows]
        values = {
            arm: best.get(arm.split(", ", 1)[1].replace(" ", "_").replace(",", ""), 0.4) for arm in arms
        }
        found[own.name] = metrics(**{arm: [[0.1, value]] * 2 for arm, value in values.items()})
    return found


def scored(**best: float) -> runs.Scores:
    return runs.scores(TABLE, tried(FIRST, **best))


INSIDE = {"local_learning_rate_0.4": 0.8, "local_learning_rate_0.2_alpha_25": 0.9}


@every(
    "whole",
    [TABLE, fedprof_v1.TABLE_2, fedprof_v2.TABLE_4_TWIN, fedlog.TABLE_1_MNIST, adds.TABLE_4, fedcor.TABLE_1],
)
def test_every_system_is_tried_as_often_on_the_choosing_half_under_seeds_that_measure_nothing(
    whole: Table,
) -> None:
    candidates = choosing(whole)
    assert candidates is not None
    for own, found in zip(whole.parts, candidates.parts, strict=True):
        for row in own.rows:
            assert len({*runs.candidates(own, row)}) == runs.SIZE == 9, row.label
        study = found.study
        assert len(study.arms) == runs.SIZE * len(own.rows)
        assert (study.data.validation, study.data.test_on) == (runs.SHARE, "validation")
        assert len(study.study.seeds) == runs.SEEDS
        assert not {*study.study.seeds} & {*own.study.study.seeds}


def test_every_candidate_has_its_settings_beside_the_arms_own() -> None:
    arms = {arm.name: arm for arm in FIRST.parts[0].study.arms}
    own = arms["FedProf, local learning rate 0.05, alpha 50"]
    assert own.local is not None
    assert (own.local.learning_rate, own.local.epochs, own.options.alpha) == (0.05, 2, 50.0)  # type: ignore[attr-defined]
    rates = sorted(arm.local.learning_rate for name, arm in arms.items() if "FedAvg" in name and arm.local)
    assert rates == pytest.approx([0.2 * 2.0 ** (k / 2) for k in range(-4, 5)])


def test_the_most_accurate_candidate_is_chosen_and_measured_on_the_other_half() -> None:
    found = scored(**INSIDE)
    assert runs.best_of(found["one", "FedAvg"]) == ((("local.learning_rate", 0.4),), 0.8)
    assert runs.best_of(found["one", "FedProf"])[0] == (("local.learning_rate", 0.2), ("alpha", 25.0))
    assert choosing(TABLE, found) is None, "no best one is at an edge"
    (own,) = runs.measured(TABLE, found).parts
    assert (own.study.data.validation, own.study.data.test_on) == (runs.SHARE, "test")
    assert own.study.study.seeds == (1, 2, 3)
    assert [arm.local and arm.local.learning_rate for arm in own.study.arms] == [0.4, 0.2]
    assert own.study.arms[1].options.alpha == 25.0  # type: ignore[attr-defined]


def test_a_grid_whose_best_is_at_its_edge_is_widened_once_and_says_so() -> None:
    found = scored(**{"local_learning_rate_0.8": 0.8, "local_learning_rate_0.05_alpha_50": 0.9})
    wider = choosing(TABLE, found)
    assert wider is not None
    assert [row.arm for row in wider.parts[0].rows] == [
        "FedAvg, local learning rate 3.2",
        "FedAvg, local learning rate 12.8",
        "FedProf, local learning rate 0.003125, alpha 50",
        "FedProf, local learning rate 0.0125, alpha 50",
    ]
    runs_there = tried(
        wider, **{"local_learning_rate_3.2": 0.85, "local_learning_rate_0.003125_alpha_50": 0.95}
    )
    final = runs.scores(TABLE, runs_there, found)
    assert runs.best_of(final["one", "FedAvg"])[0] == (("local.learning_rate", 3.2),)
    assert len(final["one", "FedProf"]) == runs.SIZE + 2
    assert [*runs.in_words(TABLE, final)] == [
        "one: Avg: chosen local learning rate 3.2 (0.850, of 9 candidates and 2 beyond an edge).",
        "one: Ours: chosen local learning rate 0.003125, alpha 50 (0.950, of 9 candidates and 2 beyond an "
        "edge; local.learning_rate 0.003125 is still at an edge and alpha 50 is the end of its range).",
    ]


def test_a_study_beyond_the_edges_names_what_its_systems_send() -> None:
    """FedAvg sends no profile: a study with it alone must not name one."""
    wider = choosing(TABLE, scored(**{**INSIDE, "local_learning_rate_0.8": 0.85}))
    assert wider is not None
    assert wider.parts[0].study.privacy.non_private == ("update",)


@every("values", [(1.0,), (1.0, 2.0), (1.0, 3.0, 2.0), (1.0, 1.0, 2.0)])
def test_a_grid_that_is_all_edge_is_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="Expected three or more values of mu in rising order"):
        Axis(key="mu", values=values)


def test_all_systems_have_the_same_least_and_largest_rate() -> None:
    """One had rates to 16 times the paper's and another to twice it, and the first one won."""
    rates = [runs.axes(PART, row)[0] for row in (AVG, OURS)]
    ends = [(own.below, own.values[0], own.values[-1], own.above) for own in rates]
    for one, other in zip(*ends, strict=True):
        assert one == pytest.approx(other)
    slow = runs.axes(PART, replace(OURS, fastest=4.0))[0]
    assert (slow.values, slow.above) == ((0.05, 0.2, 0.8), ())


def test_a_grid_of_another_size_is_refused() -> None:
    many = replace(OURS, tunes=Axis(key="alpha", values=(1.0, 2.0, 3.0, 4.0)))
    with pytest.raises(ConfigError, match="Expected 9 candidates of Ours, as of every system, got 12"):
        runs.candidates(PART, many)


def test_clients_that_hold_records_out_have_half_of_them_and_the_table_says_so() -> None:
    """FedCor chooses clients by losses on these, in the studies that choose and in those that measure."""
    held = replace(part(), text=part().text.replace('source = "digits"', 'source = "digits"\nholdout = 0.5'))
    whole = table(replace(held, rows=(AVG, OURS)))
    first = choosing(whole)
    assert first is not None
    found = runs.scores(whole, tried(first))
    final = runs.measured(whole, found).parts[0]
    sizes = []
    for text in (held.text, final.text):
        here = build(parse(text), 1)
        assert here.held is not None
        sizes.append(sum(len(x) for x, _ in here.held))
    assert 0.35 < sizes[1] / sizes[0] < 0.65
    assert runs.HALVED in runs.tuned(whole, ()).differences
    assert runs.HALVED not in runs.tuned(TABLE, ()).differences


@every("seeds", [[1], [0, 1]])
def test_a_candidate_of_which_a_run_diverged_is_never_chosen(seeds: list[int]) -> None:
    there = tried(FIRST, **INSIDE)
    own = there["one"]
    lost = (own["arm"] == "FedAvg, local learning rate 0.4") & own["seed"].isin(seeds)
    own.loc[lost, "accuracy"] = float("nan")
    assert runs.best_of(runs.scores(TABLE, there)["one", "FedAvg"])[0] != (("local.learning_rate", 0.4),)


@every("lost", [[2], [1, 2]])
def test_a_run_that_diverged_is_behind_every_finite_one(lost: list[int]) -> None:
    """A best accuracy before it diverged chose it, and -1 stood before a regression's -1.478."""
    there = tried(FIRST)
    own = there["one"]
    own["accuracy"] = -1.478
    diverged = own["arm"] == "FedAvg, local learning rate 0.4"
    own.loc[diverged, "accuracy"] = 0.9
    own.loc[diverged & own["round"].isin(lost), "accuracy"] = float("nan")
    best, accuracy = runs.best_of(runs.scores(TABLE, there)["one", "FedAvg"])
    assert best != (("local.learning_rate", 0.4),)
    assert accuracy == pytest.approx(-1.478)


def test_a_round_in_which_nobody_is_tested_is_no_divergence() -> None:
    there = tried(FIRST, **INSIDE)
    there["one"].loc[there["one"]["round"] == 1, "accuracy"] = float("nan")
    assert runs.best_of(runs.scores(TABLE, there)["one", "FedAvg"]) == ((("local.learning_rate", 0.4),), 0.8)


def test_the_printed_table_has_every_choice_and_the_last_accuracy() -> None:
    chosen = [*runs.in_words(TABLE, scored(**INSIDE))]
    whole = runs.tuned(TABLE, chosen)
    assert {*chosen} <= {*whole.differences}
    assert whole.measures[0] is Measure.LAST
    assert whole.version == TABLE.version, "a file of it is read by the table itself"
    assert "alpha" in OURS.options
    assert not any(line.startswith("Ours: alpha") for line in differences(whole))
    final = metrics(FedAvg=[[0.1, 0.5], [0.2, 0.5], [0.1, 0.6]], FedProf=[[0.9, 0.7], [0.8, 0.6], [0.8, 0.7]])
    figures = comparison.compare(whole, comparison.values(whole, {"one": final}))
    last = figures[figures["measure"] == Measure.LAST].set_index("system")["measured"].to_dict()
    assert last == pytest.approx({"Avg": 1.6 / 3, "Ours": 2.0 / 3})
    printed = "\n".join(comparison.lines(whole, figures))
    assert "one: Ours: chosen local learning rate 0.2, alpha 25 (0.900)." in printed
    assert "9 candidates a system" in printed


def test_a_table_of_another_size_is_another_table() -> None:
    small = runs.resized(TABLE, 2, 1)
    (own,) = small.parts
    assert (own.study.study.seeds, own.study.study.rounds) == ((1, 2), 1)
    assert small.version != TABLE.version
    assert runs.resized(TABLE, None, None) is TABLE
    seldom = table(replace(PART, text=PART.text.replace("rounds = 2", "rounds = 2\nevaluate_every = 2")))
    assert runs.resized(seldom, None, 1).parts[0].study.study.evaluate_every == 1
