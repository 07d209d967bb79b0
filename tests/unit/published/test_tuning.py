"""Tuned tables: as many candidates for each system, chosen by records that measure nothing."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from support.every import every
from support.tiny_table import ROWS, metrics, part, table

from securefl.core.errors import ConfigError
from securefl.protocols.tables import fedprof_v1, fedprof_v2
from securefl.published import comparison, runs
from securefl.published.runs import Candidate
from securefl.published.table import Measure, Table
from securefl.study.config import parse
from securefl.study.world import build

AVG, OURS = ROWS[0], replace(ROWS[1], tunes=("alpha", (10.0, 25.0)))
TABLE = table(replace(part(seeds="[1, 2, 3]"), rows=(AVG, OURS)))


def tried() -> dict[str, pd.DataFrame]:
    """Runs of all candidates. FedAvg is best at four times the rate; FedProf at half of it and alpha 25."""
    found = {}
    for own in runs.choosing(TABLE).parts:
        factor = float(own.name.rpartition(" ")[2])
        best = {"FedAvg": 0.8 if factor == 4 else 0.5, "FedProf, alpha 25": 0.9 if factor == 0.5 else 0.6}
        values = {row.arm: [[0.1, best.get(row.arm, 0.4)]] * 2 for row in own.rows}
        found[own.name] = metrics(**values)
    return found


@every("whole", [TABLE, fedprof_v1.TABLE_2, fedprof_v2.TABLE_3, fedprof_v2.TABLE_4_TWIN])
def test_every_system_is_tried_as_often(whole: Table) -> None:
    for own in whole.parts:
        for row in own.rows:
            assert len({*runs.candidates(row)}) == runs.SIZE, row.label


@every("whole", [TABLE, fedprof_v2.TABLE_3])
def test_every_candidate_is_a_study_on_the_choosing_half(whole: Table) -> None:
    candidates = runs.choosing(whole)
    for own in whole.parts:
        rates = [one for one in candidates.parts if one.name.startswith(own.name)]
        assert sum(len(one.rows) for one in rates) == runs.SIZE * len(own.rows)
        for one in rates:
            study = one.study
            assert (study.data.validation, study.data.test_on) == (runs.SHARE, "validation")
            assert study.study.seeds == own.study.study.seeds[: runs.SEEDS]
            factor = float(one.name.rpartition(" ")[2])
            assert study.local.learning_rate == pytest.approx(factor * own.study.local.learning_rate)


def test_the_most_accurate_candidate_is_chosen_and_measured_on_the_other_half() -> None:
    choice = runs.chosen(TABLE, tried())
    assert choice["one", "FedAvg"].candidate == Candidate(factor=4.0)
    assert choice["one", "FedProf"].candidate == Candidate(factor=0.5, options=(("alpha", 25.0),))
    assert choice["one", "FedProf"].accuracy == pytest.approx(0.9)
    final = runs.measured(TABLE, choice)
    assert [own.name for own in final.parts] == ["one, rate x 0.5", "one, rate x 4"]
    for own in final.parts:
        assert (own.study.data.validation, own.study.data.test_on) == (runs.SHARE, "test")
        assert own.study.study.seeds == (1, 2, 3)
    assert "alpha = 25.0" in final.parts[0].text
    # FedAvg sends no profile: a study with it alone must not name one.
    assert [own.study.privacy.non_private for own in final.parts] == [("update", "profile"), ("update",)]


def test_clients_that_hold_records_out_have_half_of_them_and_the_table_says_so() -> None:
    """FedCor chooses clients by losses on these, in the studies that choose and in those that measure."""
    held = replace(part(), text=part().text.replace('source = "digits"', 'source = "digits"\nholdout = 0.5'))
    whole = table(replace(held, rows=(AVG, OURS)))
    candidates = {
        own.name: metrics(**{row.arm: [[0.1], [0.2]] for row in own.rows})
        for own in runs.choosing(whole).parts
    }
    choice = runs.chosen(whole, candidates)
    final = runs.measured(whole, choice).parts[0]
    found = []
    for text in (held.text, final.text):
        here = build(parse(text), 1)
        assert here.held is not None
        found.append(sum(len(x) for x, _ in here.held))
    assert 0.35 < found[1] / found[0] < 0.65
    assert runs.HALVED in runs.tuned(whole, choice).differences
    bare = runs.tuned(TABLE, runs.chosen(TABLE, tried()))
    assert runs.HALVED not in bare.differences


def test_a_run_that_diverged_is_never_chosen() -> None:
    found = tried()
    found["one, rate x 4"]["accuracy"] = float("nan")
    assert runs.chosen(TABLE, found)["one", "FedAvg"].candidate.factor != 4.0


def test_the_printed_table_has_every_choice_and_the_last_accuracy() -> None:
    choice = runs.chosen(TABLE, tried())
    whole = runs.tuned(TABLE, choice)
    assert whole.measures[0] is Measure.LAST
    final = {
        "one, rate x 0.5": metrics(FedProf=[[0.9, 0.7], [0.8, 0.6], [0.8, 0.7]]),
        "one, rate x 4": metrics(FedAvg=[[0.1, 0.5], [0.2, 0.5], [0.1, 0.6]]),
    }
    figures = comparison.compare(whole, runs.together(TABLE, choice, final))
    last = figures[figures["measure"] == Measure.LAST].set_index("system")["measured"].to_dict()
    assert last == pytest.approx({"Avg": 1.6 / 3, "Ours": 2.0 / 3})
    printed = "\n".join(comparison.lines(whole, figures))
    assert "one: Ours: chosen learning rate" in printed
    assert "alpha 25 (0.900)" in printed
    assert "6 candidates a system" in printed


def test_studies_that_choose_are_valid_and_others_folders() -> None:
    for own in runs.choosing(fedprof_v1.TABLE_2).parts:
        parse(own.text)
    with pytest.raises(ConfigError):
        parse(runs.choosing(TABLE).parts[0].text.replace("validation", "validatoin"))


def test_a_candidate_of_which_one_seed_diverged_is_never_chosen() -> None:
    found = tried()
    own = found["one, rate x 4"]
    own.loc[own["seed"] == own["seed"].min(), "accuracy"] = float("nan")
    assert runs.chosen(TABLE, found)["one", "FedAvg"].candidate.factor != 4.0
