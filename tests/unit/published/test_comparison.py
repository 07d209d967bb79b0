"""Published figures beside measured ones, in print, as CSV and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pandas as pd
import pytest
from support.tiny_table import ROWS, TABLE, metrics, part, table

from securefl.published import comparison
from securefl.published.table import Measure, Table

RUNS = {"one": metrics(FedAvg=[[0.1, 0.1], [0.1, 0.3]], FedProf=[[0.2, 0.4], [0.1, 0.5]])}


def compared(of: Table, runs: pd.DataFrame) -> pd.DataFrame:
    return comparison.compare(of, comparison.values(of, {"one": runs}))


FIGURES = compared(TABLE, RUNS["one"])


def test_the_table_in_lines() -> None:
    said = comparison.lines(TABLE, FIGURES)
    assert said[:11] == [
        "Digits (Nobody, Table 1)",
        "Measured is a twin, whose figures are of another task: 2 rounds; published: 500 rounds.",
        "",
        "one",
        "                 best accuracy                    rounds to 0.2",
        "Avg   published  0.500 ± 0.01                     –",
        "      measured   0.200 ± 0.141                    ≥ 2.0 (1 of 2)",
        "      lead       0.250 [−0.385 to 0.885], r 1.00  ≥ 0.5, level in 1 of 2 seeds",
        "Ours  published  0.600                            N/A",
        "      measured   0.450 ± 0.071                    1.5 ± 0.7",
        "",
    ]
    assert "- study.rounds = 2; published is 500." in said
    assert "- Digits in place of everything." in said


def test_a_head_names_no_target_if_the_published_one_is_another() -> None:
    """A twin's "rounds to 0.85" stood above published rounds to 0.9."""
    other = table(replace(part(), setting={"study.target": 0.9}))
    said = comparison.lines(other, compared(other, RUNS["one"]))
    assert said[1].endswith("to 0.2; published: to 0.9.")
    assert said[4].split() == ["best", "accuracy", "rounds"]


def test_files_have_every_run_and_every_claim(tmp_path: Path) -> None:
    figures = comparison.write(tmp_path, "securefl reproduce digits", TABLE, RUNS)
    lines = (tmp_path / comparison.CSV).read_text().splitlines()
    assert lines[:3] == [
        "# securefl reproduce digits",
        f"# version {TABLE.version}",
        "# Digits (Nobody, Table 1)",
    ]
    assert "# difference: Ours: scheme = not set; published is II." in lines
    assert f"# claim: {comparison.claims(TABLE, figures)[0]}" in lines
    found = comparison.read(tmp_path / comparison.CSV, TABLE)
    assert found["value"].tolist() == [0.1, 0.3, 0.4, 0.5, 2.0, 2.0, 1.0, 2.0]
    assert found["reached"].tolist() == [True] * 4 + [False, True, True, True]
    pd.testing.assert_frame_equal(comparison.compare(TABLE, found), figures)
    kept = comparison.read(tmp_path / comparison.TRACES, TABLE)
    assert kept["round"].tolist() == [1, 2, 1, 2]
    assert kept[["0", "1"]].to_numpy().tolist() == [[0.1, 0.1], [0.1, 0.3], [0.2, 0.1], [0.4, 0.5]]


def test_a_trace_of_a_file_has_its_first_its_last_and_few_rounds_between() -> None:
    long = metrics(FedAvg=[[k / 1000 for k in range(500)]], FedProf=[[0.5, nan, 0.7]])
    kept = comparison.traces(TABLE, {"one": long}, points=5)
    assert kept["round"].tolist() == [1, 125, 250, 375, 500, 1, 3]


def ranked(seeds: int, **rivals: list[list[float]]) -> pd.DataFrame:
    return metrics(FedAvg=[[0.1 + 0.01 * k] for k in range(seeds)], **rivals)


def test_too_few_seeds_have_no_p_and_are_told_how_many_could() -> None:
    runs = ranked(5, FedProf=[[0.5]] * 5)
    figures = compared(TABLE, runs)
    assert figures["p"].isna().all()
    assert comparison.claims(TABLE, figures)[0] == (
        "one, best accuracy: Ours: no p, which 6 seeds could make significant, beside "
        "Avg (0.380 [0.360 to 0.400], r 1.00)."
    )
    sure = compared(TABLE, ranked(6, FedProf=[[0.5]] * 6))
    assert sure["p"].tolist()[0] == pytest.approx(2**-5)
    assert comparison.claims(TABLE, sure)[0].endswith(
        "ahead of Avg (0.375 [0.355 to 0.395], r 1.00, p 0.031)."
    )


def test_a_lead_whose_interval_holds_0_is_not_significant() -> None:
    """A system was ahead by 40.6 seconds at p 0.039, with an interval from -3.5 to 84.6."""
    apart = compared(
        TABLE, metrics(FedAvg=[[0.3]] * 8, FedProf=[[0.301 + 0.0001 * k] for k in range(7)] + [[0.9]])
    )
    lead = next(apart.itertuples())
    assert lead.p < 0.05
    assert lead.low < 0 < lead.lead
    assert "Ours: not significant beside Avg" in comparison.claims(TABLE, apart)[0]


@pytest.mark.parametrize("sign", ["", "−"])
def test_a_run_that_never_reached_the_target_may_be_behind_by_any_number_of_rounds(sign: str) -> None:
    """Two of eight runs never reached it in 100 rounds: p was 0.039, and 0.74 after 1,000 rounds."""
    runs = [
        [[0.1] * (rounds - 1) + [0.3] for rounds in (30, 31, 32, 33, 34, 35, 98, 99)],
        [[0.1] * 9 + [0.3]] * 6 + [[0.1] * 100] * 2,
    ]
    rival, own = reversed(runs) if sign else runs
    of = replace(TABLE, measures=(Measure.ROUNDS,))
    figures = compared(of, metrics(FedAvg=rival, FedProf=own))
    (said,) = comparison.claims(of, figures)
    assert f"Ours: not significant beside Avg ({sign}16.5 rounds [−inf to inf], r" in said
    assert "p 0.711" in said
    assert "Infinity" not in json.dumps(comparison.rows(figures))


def test_a_bound_against_nobody_has_an_infinite_interval() -> None:
    """The mean lead is 0: of two leads as large, one is a bound, and may be of any size."""
    even = metrics(FedAvg=[[0.3, 0.3, 0.3], [0.1, 0.1, 0.3]], FedProf=[[0.1, 0.1, 0.1], [0.3, 0.3, 0.3]])
    figures = compared(replace(TABLE, measures=(Measure.ROUNDS,)), even)
    assert figures[["lead", "low", "high"]].iloc[0].tolist() == [0.0, -inf, inf]


def test_one_seed_has_a_lead_and_nothing_that_needs_two() -> None:
    figures = compared(TABLE, metrics(FedAvg=[[0.1]], FedProf=[[0.4]]))
    assert figures[["deviation", "low", "high", "effect", "p"]].isna().all(axis=None)
    assert comparison.claims(TABLE, figures)[0].endswith("beside Avg (0.300).")


def test_an_arm_that_never_reaches_its_target_has_bounds_and_no_deviation() -> None:
    runs = metrics(FedAvg=[[0.1, 0.1]] * 6, FedProf=[[0.3, 0.4], [0.1, 0.3]] * 3)
    figures = compared(replace(TABLE, measures=(Measure.ROUNDS, Measure.MINUTES)), runs)
    assert comparison.measured_words(Measure.ROUNDS, next(figures.itertuples())) == "≥ 2.0 (0 of 6)"
    # In half of the seeds the own system reached it in the last round: that is no difference that is known.
    assert figures["level"].tolist()[:3:2] == [3, 3]
    assert figures["lead"].tolist()[0] == 0.5
    # A lead of bounds is one, and has no interval.
    said = comparison.lead_words(Measure.ROUNDS, next(figures.itertuples()))
    assert said == "≥ 0.5, r 1.00, level in 3 of 6 seeds"
    assert figures["p"].isna().all()
    nobody = compared(TABLE, metrics(FedAvg=[[0.1, 0.1]] * 6, FedProf=[[0.1, 0.1, 0.1]] * 6))
    assert comparison.claims(TABLE, nobody)[1] == "one, rounds: Ours: never at the target, like Avg."
    assert nobody["lead"].tolist()[2] == 0
    # A lead of 0 would read as a figure.
    assert comparison.lead_words(Measure.ROUNDS, [*nobody.itertuples()][2]) == "–"


def test_a_bound_that_may_speak_against_the_lead_leaves_it_no_end() -> None:
    """In the last seed the own system has not arrived when the other one has: its lead read as 0 or more."""
    runs = metrics(FedAvg=[[0.1, 0.1, 0.3]] * 8, FedProf=[[0.3]] * 7 + [[0.1]])
    runs = runs[(runs["arm"] == "FedAvg") | (runs["seed"] < 8) | (runs["round"] == 1)]
    (lead, *_) = compared(replace(TABLE, measures=(Measure.ROUNDS,)), runs).itertuples()
    assert (lead.lead, lead.low, lead.high, lead.level) == (1.75, -inf, inf, 0)
    assert comparison.lead_words(Measure.ROUNDS, lead) == "1.8 [−inf to inf], r 0.56, p 0.234"
    assert comparison.verdict(lead) == "not significant beside"


def test_ties_under_all_seeds_are_level_without_a_p() -> None:
    figures = compared(TABLE, metrics(FedAvg=[[0.3]] * 8, FedProf=[[0.3]] * 8))
    assert comparison.claims(TABLE, figures)[0].endswith("Ours: level under all seeds beside Avg.")
    avg = next(figures.itertuples())
    assert comparison.lead_words(Measure.BEST, avg) == "0.000, level under all seeds"
    last = compared(
        replace(TABLE, measures=(Measure.ROUNDS,)),
        metrics(FedAvg=[[0.1, 0.1]] * 8, FedProf=[[0.1, 0.3]] * 8),
    )
    (said,) = comparison.claims(replace(TABLE, measures=(Measure.ROUNDS,)), last)
    assert "Ours: level under all seeds beside Avg" in said, "a bound of two rounds beside two rounds"


def test_as_many_seeds_as_ran_are_never_asked_for() -> None:
    """Five of eight seeds differ. Six that differ could be significant, and three do not."""
    runs = ranked(5, FedProf=[[0.5]] * 8)
    level = metrics(FedAvg=[[0.5]] * 8)
    level.loc[level["seed"] < 5, "accuracy"] = runs[runs["arm"] == "FedAvg"]["accuracy"].tolist()
    figures = compared(TABLE, pd.concat([level, runs[runs["arm"] == "FedProf"]], ignore_index=True))
    assert figures["level"].tolist()[0] == 3
    assert (
        "Ours: no p, which 9 seeds could make significant, beside Avg"
        in (comparison.claims(TABLE, figures)[0])
    )


LOCAL = table(
    replace(part(), rows=(*ROWS, replace(ROWS[0], label="None", arm="FedAvg"))),
    measures=(Measure.LAST, Measure.LOCAL),
)


def test_a_system_without_a_figure_is_named_and_compared_with_nobody() -> None:
    """It was in no sentence ("Ours: ."), and its p counted among those that are adjusted."""
    runs = metrics(FedAvg=[[0.1], [0.2]], FedProf=[[0.5], [0.6]])
    runs["local accuracy"] = [nan, nan, 0.5, 0.6]
    figures = compared(LOCAL, runs)
    assert figures.loc[figures["measure"] == Measure.LOCAL, "p"].isna().all()
    assert comparison.claims(LOCAL, figures)[1] == "one, local accuracy: Ours: no figure of Avg and None."
    lines = comparison.lines(LOCAL, figures)
    assert "      measured   0.150 ± 0.071                   –" in lines
    assert "      lead       0.400 [0.400 to 0.400], r 1.00  –" in lines
    assert [row["measured"] for row in comparison.rows(figures)][3:] == [None, 0.55, None]


def test_a_run_that_diverged_has_no_last_accuracy_and_ends_no_table() -> None:
    """Its accuracies are all unknown. The table of a whole night stopped with an IndexError."""
    runs = metrics(FedAvg=[[nan, nan], [0.2, 0.3]], FedProf=[[0.5, 0.5], [0.6, 0.6]])
    figures = compared(replace(TABLE, measures=(Measure.LAST, Measure.BEST, Measure.ROUNDS)), runs)
    assert figures["measured"].isna().tolist() == [True, False, True, False, False, False]
    assert "NaN" not in json.dumps(comparison.rows(figures))
    assert "one, last accuracy: Ours: no figure of Avg." in comparison.claims(
        replace(TABLE, measures=(Measure.LAST,)), figures
    )


def test_if_the_own_system_has_no_figure_nobody_is_compared() -> None:
    runs = metrics(FedAvg=[[0.2], [0.3]], FedProf=[[nan], [0.6]])
    figures = compared(TABLE, runs)
    assert comparison.claims(TABLE, figures)[0] == "one, best accuracy: Ours: no figure of its own."


def test_json_has_no_nan() -> None:
    one = compared(TABLE, metrics(FedAvg=[[0.1]], FedProf=[[0.2]]))
    assert "NaN" not in json.dumps(comparison.rows(one))
