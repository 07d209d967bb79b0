"""Runs side by side: what is refused, what is listed, and a test where it has power."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import wilcoxon
from support.command_line import said as command
from support.every import every
from support.tiny_study import FEDAVG, FEDPROF, text

from securefl.core.errors import ConfigError, DataError
from securefl.core.release import PARTIES
from securefl.report.accuracy import MEASURES
from securefl.report.significance import holm, least_pairs
from securefl.storage.private_folder import RUN, note_format
from securefl.study.comparison import Comparison, as_json, compared, page, tables

WORDS = MEASURES["classification"].words


def finished(
    folder: Path,
    *,
    config: str = "",
    finals: Sequence[float] = (0.5,),
    arms: Sequence[str] = ("FedAvg",),
    measure: str = WORDS,
    models: str = "global",
) -> Path:
    """A run folder as `report` leaves it. The final accuracies are by seed, one lower for each next arm."""
    folder.mkdir(parents=True)
    rows = [
        (arm, seed, number, final - 0.01 * place - 0.1 * (2 - number), 1000, 2000, models, 1.0, 0.0, np.inf)
        for place, arm in enumerate(arms)
        for seed, final in enumerate(finals)
        for number in (1, 2)
    ]
    columns = ["arm", "seed", "round", "accuracy", "bytes_up", "bytes_down", "models"]
    columns += ["epsilon_server", "epsilon_key-holder", "epsilon_others"]
    table = pd.DataFrame(rows, columns=columns)
    note_format(folder, RUN)
    (folder / "study.toml").write_text(config or text(FEDAVG))
    table.to_csv(folder / "metrics.csv", index=False)
    (folder / "summary.json").write_text(json.dumps({"accuracy": measure}))
    return folder


def two(tmp_path: Path, first: Sequence[float], second: Sequence[float]) -> Comparison:
    return compared([finished(tmp_path / "a", finals=first), finished(tmp_path / "b", finals=second)])


def beside(found: Comparison) -> list[str]:
    """The last cell of each arm that has an opponent in the first run."""
    return [row[-1] for row in rows(found) if row[-1] != "–"]


def rows(found: Comparison) -> list[Sequence[str]]:
    return tables(found)[0][1:]


def test_a_difference_with_power_has_the_signed_rank_p(tmp_path: Path) -> None:
    first = np.array([0.50, 0.52, 0.55, 0.53, 0.56, 0.58, 0.54])
    gaps = np.array([0.02, 0.05, 0.011, 0.034, 0.06, 0.023, -0.004])
    found = two(tmp_path, first.tolist(), (first + gaps).tolist())
    own = found.series.loc["b"]
    assert own.p == pytest.approx(wilcoxon(gaps).pvalue)
    assert own.points == pytest.approx(100 * gaps.mean())
    assert beside(found) == ["+2.8 points beside a, paired seeds: 7, p = 0.031"]
    assert found.notes == []


@every("seeds", [1, 2, 5])
def test_a_difference_without_power_says_so(tmp_path: Path, seeds: int) -> None:
    found = two(tmp_path, [0.5] * seeds, [0.6 + 0.01 * k for k in range(seeds)])
    assert found.series["p"].isna().all()
    (why,) = found.notes
    assert why.startswith(f"No test: {seeds} pair")
    assert ("1 paired seed, of which 1 differs, cannot" in why) == (seeds == 1)
    assert "run 6 seeds or more" in why
    assert wilcoxon(np.arange(1.0, 6.0)).pvalue > 0.05, "five pairs never have a p below 0.05"
    assert wilcoxon(np.arange(1.0, 7.0)).pvalue < 0.05


def test_seeds_that_ended_level_do_not_count_as_pairs(tmp_path: Path) -> None:
    found = two(tmp_path, [0.5] * 8, [0.5, 0.5, 0.5, 0.6, 0.61, 0.62, 0.63, 0.64])
    assert found.series["p"].isna().all()
    assert "8 paired seeds, of which 5 differ," in found.notes[0]


def test_a_seed_that_diverged_leaves_nothing_to_test(tmp_path: Path) -> None:
    finals = [0.6 + 0.01 * k for k in range(10)]
    for lost in (2, 4):
        found = two(tmp_path / str(lost), [0.5] * 10, [*finals[lost:], *[np.nan] * lost])
        own = found.series.loc["b"]
        assert np.isnan(own.p)
        assert np.isnan(own.points)
        assert found.notes == [f"No test: {lost} seeds of b and a diverged."]
        assert beside(found) == ["not every seed has an accuracy here and in a"]
    assert not np.isnan(two(tmp_path / "all", [0.5] * 10, finals).series.loc["b"].p)


def test_a_seed_that_one_run_has_not_is_no_lost_one(tmp_path: Path) -> None:
    found = two(tmp_path, [0.5] * 8, [0.6 + 0.01 * k for k in range(7)])
    assert found.series.loc["b"].p < 0.05


def test_several_tests_are_corrected_and_need_more_pairs(tmp_path: Path) -> None:
    rng, config = np.random.default_rng(3), text(FEDAVG, FEDPROF)
    base = rng.uniform(0.4, 0.6, 9)
    arms = ("FedAvg", "FedProf")
    runs = [finished(tmp_path / "a", config=config, finals=base.tolist(), arms=arms)]
    gaps = {"b": rng.normal(0.03, 0.02, 9), "c": rng.normal(0.0, 0.02, 9)}
    for name, gap in gaps.items():
        runs.append(finished(tmp_path / name, config=config, finals=(base + gap).tolist(), arms=arms))
    found = compared(runs)
    raw = [wilcoxon(gaps[name]).pvalue for name in ("b", "b", "c", "c")]
    later = found.series.iloc[2:]
    assert list(later["p"]) == pytest.approx(list(holm(raw)))
    assert list(later["other"]) == ["a: FedAvg", "a: FedProf"] * 2
    assert [least_pairs(m) for m in (1, 2, 4, 5)] == [6, 7, 8, 8]


def test_an_arm_that_cannot_be_tested_costs_the_others_nothing(tmp_path: Path) -> None:
    config, arms = text(FEDAVG, FEDPROF), ("FedAvg", "FedProf")
    runs = []
    for name, gap in (("a", 0.0), ("b", 0.1)):
        run = finished(tmp_path / name, config=config, finals=[0.3 + 0.01 * k for k in range(6)], arms=arms)
        table = pd.read_csv(run / "metrics.csv")
        table["accuracy"] += gap * (1 + table["seed"] / 10) * (table["arm"] == "FedAvg")
        table.to_csv(run / "metrics.csv", index=False)
        runs.append(run)
    later = compared(runs).series.iloc[2:]
    assert list(later["p"]) == pytest.approx([2 / 2**6, np.nan], nan_ok=True)
    assert later["points"].iloc[1] == 0.0
    raised = pd.read_csv(runs[1] / "metrics.csv").eval("accuracy = accuracy + 0.1 * (arm == 'FedProf')")
    raised.to_csv(runs[1] / "metrics.csv", index=False)
    found = compared(runs)
    assert found.series["p"].isna().all(), "two hopeful tests need seven pairs"
    assert all("in 2 tests; run 7 seeds or more" in note for note in found.notes)


def test_differences_are_listed_by_key_and_arm(tmp_path: Path) -> None:
    other = text(FEDAVG.replace("0.5", "0.25"), FEDPROF).replace("learning_rate = 0.2", "learning_rate = 0.1")
    found = compared(
        [finished(tmp_path / "a"), finished(tmp_path / "b", config=other.replace('"tiny"', '"other"'))]
    )
    assert found.differences == {
        "local.learning_rate": [0.2, 0.1],
        "privacy.non_private": [["update"], ["update", "profile"]],
        'arm "FedAvg".fraction': [0.5, 0.25],
        'arm "FedProf".protocol': [None, "fedprof"],
        'arm "FedProf".fraction': [None, 0.5],
    }
    head, first, *_, last = tables(found)[1]
    assert [head, first] == [["key", "a", "b"], ["local.learning_rate", "0.2", "0.1"]]
    assert last[1:] == ["not set", "0.5"]


def test_a_run_that_went_on_has_the_rounds_that_it_played(tmp_path: Path) -> None:
    """`run --rounds 2` leaves the text of the study as it is."""
    config = text(FEDAVG, rounds=1)
    went_on = finished(tmp_path / "a", config=config)
    found = compared([went_on, finished(tmp_path / "b")])
    assert "study.rounds" not in found.differences
    rest = pd.read_csv(went_on / "metrics.csv").query("round == 1")
    rest.to_csv(went_on / "metrics.csv", index=False)
    found = compared([went_on, tmp_path / "b"])
    assert found.differences["study.rounds"] == [1, 2]


def test_megabytes_of_small_runs_are_not_rounded_to_nothing(tmp_path: Path) -> None:
    found = two(tmp_path, [0.5], [0.5])
    assert [row[4:6] for row in rows(found)] == [("0.002", "0.004")] * 2


VALIDATION = text(FEDAVG).replace('"digits"', '"digits"\nvalidation = 0.5')
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another data set": (
        lambda b: finished(b, config=text(FEDAVG).replace('"digits"', '"mnist"')),
        "data.source = digits in a and mnist in b",
    ),
    "another part of the test records": (
        lambda b: finished(b, config=VALIDATION),
        "data.validation = 0.0 in a and 0.5 in b",
    ),
    "the part for choosing": (
        lambda b: finished(b, config=VALIDATION.replace("0.5", '0.5\ntest_on = "validation"')),
        "data.test_on = test in a and validation in b",
    ),
    "another measure": (lambda b: finished(b, measure="R2"), "and R2 in b"),
    "other records": (lambda b: _with_digest(finished(b), "SHA-256 22"), "SHA-256 of data = SHA-256 11 in a"),
    "no run": (lambda b: b.mkdir(), "no study.toml"),
    "not finished": (lambda b: (finished(b) / "summary.json").unlink(), "not finished; go on with"),
}


def _with_digest(folder: Path, digest: str) -> None:
    (folder / "private").mkdir(exist_ok=True)
    (folder / "private" / "records.json").write_text(json.dumps({"note": "x", "data": digest}))


@every(("make", "why"), REFUSED.values())
def test_runs_that_do_not_compare_are_refused(
    tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    config = VALIDATION if "test_on" in why else ""
    _with_digest(finished(tmp_path / "a", config=config), "SHA-256 11")
    make(tmp_path / "b")
    with pytest.raises(ConfigError, match=why.replace(".", r"\.")):
        compared([tmp_path / "a", tmp_path / "b"])


def test_what_a_study_says_as_it_is_without_is_no_other_test(tmp_path: Path) -> None:
    said = text(FEDAVG).replace('"digits"', '"digits"\nvalidation = 0.0\ntest_on = "test"')
    said += '[measures]\nat = "averaged"\n'
    compared([finished(tmp_path / "a"), finished(tmp_path / "b", config=said)])


def test_personal_models_of_two_parts_do_not_compare(tmp_path: Path) -> None:
    config = text(FEDAVG) + '[measures]\nat = "own"\n'
    for models in ("global", "personal"):
        runs = [finished(tmp_path / models / "a", models=models)]
        runs.append(finished(tmp_path / models / "b", config=config, models=models))
        if models == "global":
            compared(runs)
            continue
        with pytest.raises(ConfigError, match=r"measures\.at = averaged in a and own in b"):
            compared(runs)


def test_one_run_and_the_same_run_twice_are_refused(tmp_path: Path) -> None:
    run = finished(tmp_path / "a")
    for runs in ([run], [run, run], [run, tmp_path / "b" / ".." / "a"]):
        (tmp_path / "b").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match="two or more"):
            compared(runs)


@every(
    "damage",
    [
        lambda run: (run / "metrics.csv").write_bytes(b"\xff\xfe\0"),
        lambda run: (run / "metrics.csv").write_text(""),
        lambda run: (run / "summary.json").write_text("[1]"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    run = finished(tmp_path / "b")
    damage(run)
    with pytest.raises(DataError, match=r"(metrics\.csv|summary\.json): expected"):
        compared([finished(tmp_path / "a"), run])


@every("why", ["the runs deal their records differently (data.clients)", "a key of its own"])
def test_seeds_that_are_not_one_world_are_not_paired(tmp_path: Path, why: str) -> None:
    config = text(FEDAVG, clients=8) if "data.clients" in why else ""
    runs = [finished(tmp_path / "a", finals=[0.5] * 7)]
    runs.append(finished(tmp_path / "b", config=config, finals=[0.6 + 0.01 * k for k in range(7)]))
    if not config:
        for run in runs:
            (run / "private").mkdir()
            (run / "private" / "split.key").write_bytes(run.name.encode() * 32)
    found = compared(runs)
    assert found.series["p"].isna().all()
    assert all(why in note for note in found.notes)
    assert beside(found) == ["+13.0 points beside a, seeds of each: 7"]


def test_personal_accuracies_come_from_the_private_table_and_are_marked(tmp_path: Path) -> None:
    runs = [finished(tmp_path / name, models="personal") for name in ("a", "b")]
    for run in runs:
        table = pd.read_csv(run / "metrics.csv")
        (run / "private").mkdir()
        table.to_csv(run / "private" / "metrics.csv", index=False)
        table.assign(accuracy=np.nan).to_csv(run / "metrics.csv", index=False)
    found = compared(runs)
    assert found.personal
    assert as_json(found)["not_for_publication"]
    assert page(found, "x").count("Not for publication") == 2
    assert [row[3] for row in rows(found)] == ["0.500", "0.500"]
    for run in runs:
        shutil.rmtree(run / "private")
    assert [row[3] for row in rows(compared(runs))] == ["–", "–"]


def test_the_highest_accuracy_of_each_kind_of_model_stands_first(tmp_path: Path) -> None:
    """A personal model's accuracy is of other records, so no row of one kind stands among the other's."""
    run = finished(tmp_path / "a", arms=("Personal", "FedAvg"))
    table = pd.read_csv(run / "metrics.csv")
    table.loc[table["arm"] == "Personal", "models"] = "personal"
    table.to_csv(run / "metrics.csv", index=False)
    found = compared([run, finished(tmp_path / "b", finals=(0.6,))])
    assert [row[:2] for row in rows(found)] == [
        ("b: FedAvg", "global"),
        ("a: FedAvg", "global"),
        ("a: Personal", "personal"),
    ]
    assert beside(found) == ["+11.0 points beside a: FedAvg, paired seeds: 1"]


def test_seeds_that_two_runs_do_not_share_and_arms_without_an_opponent(tmp_path: Path) -> None:
    first, other = finished(tmp_path / "a"), finished(tmp_path / "b", finals=(np.nan,))
    assert beside(compared([first, other])) == ["no seed with an accuracy here and in a"]
    many = finished(tmp_path / "c", arms=[f"arm {k} of a long name" * 4 for k in range(40)])
    assert beside(compared([first, many])) == []
    assert "No arm has an opponent" in compared([first, many]).notes[-1]


def test_an_arm_whose_name_a_table_could_misread_keeps_it(tmp_path: Path) -> None:
    """pandas takes NA for no name, and what is behind a # for a comment."""
    names = ("NA", "FedAvg #1", "null")
    found = compared([finished(tmp_path / word, arms=names) for word in "ab"])
    assert found.series["arm"].tolist() == [*names, *names]


def test_the_page_escapes_what_it_shows(tmp_path: Path) -> None:
    evil = "<script>alert(1)"
    run = finished(tmp_path / evil, config=text(FEDAVG).replace('"tiny"', f'"{evil}"'), arms=(evil,))
    shown = page(compared([run, finished(tmp_path / "b", arms=(evil,))]), evil)
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)" in shown


def test_the_command_writes_a_page_and_json(tmp_path: Path) -> None:
    runs = [str(finished(tmp_path / name)) for name in ("a", "b")]
    told = command("compare", *runs, "--json", "-o", tmp_path / "c.html")
    assert told.exit_code == 0, told.output
    said = json.loads(told.stdout, parse_constant=lambda word: pytest.fail(word))
    assert said == as_json(compared([*map(Path, runs)])) | {"page": str(tmp_path / "c.html")}
    assert [said["series"][0][f"epsilon_{p}"] for p in PARTIES] == [1.0, 0.0, "inf"]
    again = command("compare", *runs, "-o", tmp_path / "c.html")
    assert again.exit_code == 0, "a page may be written again"
    kept = tmp_path / "a" / "study.toml"
    refused = command("compare", *runs, "-o", kept)
    assert isinstance(refused.exception, ConfigError)
    assert kept.read_text() == text(FEDAVG)


def test_own_records_without_a_digest_are_said_to_be_unchecked(tmp_path: Path) -> None:
    """A published folder lacks `private`: its file may have had other records under the same name."""
    config = text(FEDAVG).replace('"digits"', '"table.csv"')
    runs = [finished(tmp_path / name, config=config) for name in ("a", "b")]
    assert "no digest of them in private/records.json of a and b." in compared(runs).notes[0]
    _with_digest(runs[0], "SHA-256 11")
    assert "no digest of them in private/records.json of b." in compared(runs).notes[0]
    _with_digest(runs[1], "SHA-256 11")
    assert not any("Nobody checked" in note for note in compared(runs).notes)
    packaged = [finished(tmp_path / name) for name in ("c", "d")]
    assert not any("Nobody checked" in note for note in compared(packaged).notes), (
        "the records of a packaged set are pinned"
    )
