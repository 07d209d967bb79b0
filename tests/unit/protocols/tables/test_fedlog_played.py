"""FedLog's tables on few records: every system plays, and personal models count with their own accuracies."""

from __future__ import annotations

import re
from dataclasses import replace
from math import e, log, sqrt
from pathlib import Path

import pytest
import tomli_w
from support.cheap_runs import undrawn
from support.every import every

from securefl.dp import epsilon_of
from securefl.protocols.tables import fedlog
from securefl.published import comparison
from securefl.published.runs import SIZE, candidates, choosing, run_table, tuned
from securefl.published.table import Measure, Part, Table
from securefl.storage.texts import toml
from securefl.study.composition import composition
from securefl.study.packaged import text_of
from securefl.study.world import build
from securefl.sweep.cells import parse_sweep, put

FEW = {
    "study.rounds": 1,
    "study.seeds": [1],
    "data.source": "digits",
    "data.clients": 10,
    "data.records": 200,
    "model.kind": "mlp",
    "model.hidden": [32, 16],
    "local.epochs": 1,
}


def few(part: Part) -> Part:
    """The part on 200 records of digits, which are 8x8 pixels from 0 to 1."""
    study = toml(part.text)
    for key, value in FEW.items():
        put(study, key, value)
    del study["data"]["scaling"]
    return replace(part, text=tomli_w.dumps(study))


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(fedlog.TABLE_1_MNIST, id="table 1"),
        pytest.param(fedlog.FLEXIBLE, id="flexible", marks=pytest.mark.slow),
    ],
)
def test_every_system_plays(table: Table, tmp_path: Path) -> None:
    small = replace(table, parts=tuple(few(part) for part in table.parts))
    with undrawn():
        results = run_table(small, tmp_path, lambda *told: None, workers=1)
    metrics = {name: own.metrics for name, own in results.items()}
    figures = comparison.compare(small, comparison.values(small, metrics))
    (found,) = metrics.values()
    assert found["accuracy"].notna().all()
    common = {"FedAvg", "CS-FL"} & {*found["arm"]}
    assert {*found.loc[found["models"] == "global", "arm"]} == common
    arms = {row.label: row.arm for part in small.parts for row in part.rows}
    assert len(figures) == len(arms) * len(small.measures)
    for figure in figures.itertuples():
        own = found[found["arm"] == arms[figure.system]].iloc[-1]
        sent = {Measure.MEGABITS_UP: own["bytes_up"] * 8 / 1e6, Measure.MEGABYTES: own["megabytes"]}
        assert figure.measured == pytest.approx(sent.get(figure.measure, own["accuracy"]))


@every("table", [fedlog.TABLE_1_MNIST, fedlog.TABLE_1_CIFAR10])
def test_the_eleven_systems_are_tried_equally_often(table: Table) -> None:
    (part,) = table.parts
    assert [len(candidates(part, row)) for row in part.rows] == [SIZE] * 11
    first = choosing(table)
    assert first is not None
    tried = [arm["name"] for one in first.parts for arm in toml(one.text)["arm"]]
    assert len(tried) == 11 * SIZE


def test_a_tuned_table_has_each_measure_once() -> None:
    table = fedlog.TABLE_1_MNIST
    assert tuned(table, ()).measures == table.measures


def test_bodies_of_two_lengths_in_every_arm() -> None:
    (part,) = fedlog.FLEXIBLE.parts
    assert [arm["shorter"] for arm in toml(part.text)["arm"]] == [0.5] * 4


def test_inputs_are_normalised_as_the_authors_do() -> None:
    for table, channels in (
        (fedlog.TABLE_1_MNIST, 1),
        (fedlog.TABLE_1_CIFAR10_TWIN, 3),
        (fedlog.FLEXIBLE, 3),
    ):
        scaling = table.parts[0].study.data.scaling
        assert scaling is not None
        assert (len(scaling.mean), len(scaling.deviation)) == (channels, channels)


# Figure 2's noise --------------------------------------------------------------------------------

NOMINAL = (0.5, 1.0, 5.0)
DELTA, RELEASES = 0.01, 101
FIGURE, TWIN = "fedlog_figure_2_privacy", "fedlog_figure_2_privacy_twin"
BOTH = pytest.mark.parametrize(("study", "releases"), [(FIGURE, RELEASES), (TWIN, 21)])


def classic(epsilon: float) -> float:
    """The noise of the authors' code, in sensitivities: that of one Gaussian release."""
    return sqrt(2 * log(1.25 / DELTA)) / epsilon


def of_theorem_4(epsilon: float) -> float:
    return sqrt(8 * RELEASES * log(e + epsilon / DELTA)) / epsilon


def epsilons_in_text(study: str) -> list[list[float]]:
    """The rows of the table in the study's text: a nominal epsilon, and true ones."""
    rows = re.findall(r"^# {5}([\d.]+) +([\d.]+) +([\d.]+)$", text_of(study), re.M)
    assert [float(row[0]) for row in rows] == [*NOMINAL]
    return [[float(number) for number in row] for row in rows]


def exact(noise: float, releases: int) -> float:
    return epsilon_of(noise, DELTA, releases=releases, sensitivity=1.0)


def test_each_nominal_epsilon_stands_beside_the_true_one() -> None:
    for nominal, true, theorem in epsilons_in_text(FIGURE):
        assert exact(classic(nominal), RELEASES) == pytest.approx(true, rel=4e-3)
        assert exact(of_theorem_4(nominal), RELEASES) == pytest.approx(theorem, rel=4e-3)
    for nominal, fewer, true in epsilons_in_text(TWIN):
        assert exact(classic(nominal), 21) == pytest.approx(fewer, rel=4e-3)
        assert exact(classic(nominal), RELEASES) == pytest.approx(true, rel=4e-3)


@BOTH
def test_both_placements_have_the_noise_of_the_authors(study: str, releases: int) -> None:
    text = toml(text_of(study))
    del text["data"]["scaling"]
    few_digits = {"data.source": "digits", "model.kind": "mlp", "model.hidden": [100]}
    for key, value in few_digits.items():
        put(text, key, value)
    cells = parse_sweep(tomli_w.dumps(text)).cells
    here = build(cells[0].study, 1)
    plans = [composition(cell.study, cell.study.arms[0], here)[1] for cell in cells]
    for placement in ("central", "local"):
        own = {plan.noise_multiplier for plan in plans if plan.noise == placement}
        # the epsilons of the study have three digits
        assert sorted(own) == pytest.approx(sorted(map(classic, NOMINAL)), rel=4e-3)
    assert {plan.noise for plan in plans} == {"central", "local", "none"}
    assert all(plan.max_releases == {"statistic": releases} for plan in plans)
