"""The auditor of whole studies: what it must find, what it must not, and a grid of honest studies.

Its false alarm is stated in `support.auditor`. The grid comes in parts that share the level by their numbers
of cases, so that all parts together are red once in 1 / LEVEL honest grids. Keys are fixed here, so that what
passes once passes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from support import auditor
from support.audited_defects import ATTACKS, FEDAVG, PLANTS
from support.audited_grid import (
    BROADCASTS,
    COUNT,
    DELTA,
    MODELS,
    QUICK,
    Case,
    cases,
    hidden,
    levels,
    odd,
    odd_cases,
    quick,
    refusals,
    text_of,
    tried,
)
from support.auditor import LEVEL, Finding, audit, holm
from support.every import every
from support.observed_runs import couple
from support.observed_runs import text_of as placed

import securefl

_PART = 11


# The auditor itself --------------------------------------------------------------------------------


def finding(p: float) -> Finding:
    return Finding(study="x", party="server", distinguisher="values", told=1.0, bound=2.0, p=p)


def test_holm_rejects_step_by_step() -> None:
    """0.01 / 3 for the least, 0.01 / 2 for the next; the one behind the first that stays is not looked at."""
    assert [own.p for own in holm([finding(0.004), finding(0.5), finding(0.002)], 0.01)] == [0.002, 0.004]
    assert holm([finding(0.004), finding(0.0045), finding(0.5)], 0.01) == []


@every("delta", [1e-5, 1e-3, 1e-2])
@every("mu", [0.1, 1.0, 5.0])
def test_epsilon_and_mu_are_inverse_and_as_dp_accounting_has_them(mu: float, delta: float) -> None:
    from dp_accounting import get_epsilon_gaussian

    epsilon = auditor._epsilon(mu, delta)
    assert epsilon == pytest.approx(get_epsilon_gaussian(1 / mu, delta), rel=1e-4, abs=1e-6)
    if epsilon > 1e-3:
        assert auditor._mu(epsilon, delta) == pytest.approx(mu, rel=1e-4)


def views(
    rng: np.random.Generator, runs: int, width: int, moved: float, *, coupled: bool, sigma: float = 1.0
) -> list[tuple[dict[tuple[str], np.ndarray], dict[tuple[str], np.ndarray]]]:
    """Releases of two neighbours that are `moved` apart, under noise of deviation sigma."""
    made = []
    for _ in range(runs):
        noise = rng.normal(0, sigma, width)
        other = noise if coupled else rng.normal(0, sigma, width)
        made.append(({("x",): noise}, {("x",): other + moved / np.sqrt(width)}))
    return made


@every("coupled", [True, False])
def test_p_values_of_honest_releases_are_at_least_uniform(coupled: bool) -> None:
    """400 audits of a claim that is exactly right: as many p-values below t as t says, or fewer."""
    rng = np.random.default_rng(1)
    told = auditor._epsilon(1.0, DELTA)
    found = np.array(
        [auditor._values(views(rng, 6, 20, 1.0, coupled=coupled), told, DELTA)[1] for _ in range(400)]
    )
    for level in (0.05, 0.2, 0.5):
        most = 400 * level + 4 * np.sqrt(400 * level * (1 - level))
        assert (found < level).sum() <= most


def test_a_tenth_less_noise_shows_in_some_dozens_of_releases() -> None:
    rng = np.random.default_rng(2)
    told = auditor._epsilon(1.0, DELTA)
    assert auditor._values(views(rng, 30, 60, 1.0, coupled=True, sigma=0.9), told, DELTA)[1] < 1e-6
    assert auditor._values(views(rng, 30, 60, 1.0, coupled=True), told, DELTA)[1] > 1e-3


def test_a_gross_move_shows_in_a_handful_of_releases_that_share_no_noise() -> None:
    rng = np.random.default_rng(3)
    told = auditor._epsilon(1.0, DELTA)
    assert auditor._values(views(rng, 8, 20, 200.0, coupled=False), told, DELTA)[1] < 1e-4


# What it must find ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(ATTACKS))
def test_an_attack_on_the_old_version_is_refused_or_harmless_here(name: str) -> None:
    findings = ATTACKS[name]().findings(name)
    assert findings is None or not holm(findings), auditor.table(findings)


@pytest.mark.parametrize("name", list(PLANTS))
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the distinguisher that it is for, among all findings of its study."""
    plant = PLANTS[name]
    plant.plant(monkeypatch)
    findings = plant.findings()
    assert plant.by in {own.distinguisher for own in holm(findings)}, auditor.table(findings)


def test_ten_defects_are_planted_or_more() -> None:
    assert len(PLANTS) >= 10
    named = {"start", "silence", "lengths", "public", "constants", "last bits", "reuse", "values"}
    assert {plant.by for plant in PLANTS.values()} == named


@pytest.mark.parametrize(("kind", "split"), odd_cases())
def test_odd_records_answer_as_any_other(kind: str, split: str) -> None:
    """On whichever side a key puts it: under three keys a record is held out and trained on."""
    case, one, other = odd(kind, split)
    findings = audit(
        text_of(case),
        one,
        other,
        runs=3,
        model=MODELS.get(case.model),
        name=f"{kind}/{split}",
        delta=DELTA,
        measures=split == "test part",
    )
    assert findings
    assert not holm(findings), auditor.table(findings)


@every(("kind", "split"), odd_cases())
def test_a_plan_does_not_tell_of_odd_records(
    kind: str, split: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case, *sides = odd(kind, split)
    couple(monkeypatch, b"plan")
    told = []
    for side in sides:
        side.write(tmp_path)
        text = placed(text_of(case), str(tmp_path))
        model = MODELS.get(case.model)
        told.append(securefl.forecast(text, data=side.brought, model=model, progress=False))
    one, other = (own.costs.drop(columns="seconds").to_csv() for own in told)
    assert one == other
    assert told[0].table.equals(told[1].table)


# The grid ------------------------------------------------------------------------------------------


def test_the_grid_is_the_same_everywhere_and_has_every_level() -> None:
    assert len(cases()) == len(set(cases())) == COUNT
    assert len(quick()) == len(set(quick())) == QUICK
    assert set(quick()) < set(cases())
    for of in (cases(), quick()):
        for axis, counted in levels(of).items():
            assert all(counted.values()), (axis, counted)
    assert cases()[0].name == "fedbabu/digits/holdout/mlp/clear/dpsgd/record add-remove/short"


def _require_honest(
    part: Sequence[Case], runs: int, measures: bool, sent: Sequence[str] = ("",)
) -> list[Finding]:
    """sent: what the servers of these cases broadcast, by turns.

    `reuse` compares runs under several keys. Where the key also splits the records, these differ between
    runs, and under a broadcast of another scale their values differ by more than the noise.
    """
    findings = [
        found
        for case, kind in zip(part, cycle(sent))
        for found in tried(case, runs=runs, measures=measures, sent=kind)
        if not (kind and case.split != "test part" and found.distinguisher == "reuse")
    ]
    red = holm(findings, LEVEL * len(part) / COUNT)
    assert not red, auditor.table(red)
    return findings


@pytest.mark.parametrize("part", range(QUICK // _PART))
def test_quick_studies_of_the_grid_are_honest(part: int) -> None:
    """Under two keys: `reuse` alone needs three. The observer, whom no party hears, trains nothing."""
    _require_honest(quick()[part * _PART : (part + 1) * _PART], runs=2, measures=False)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(COUNT // 10))
def test_all_studies_of_the_grid_are_honest(part: int) -> None:
    _require_honest(cases()[part * 10 : (part + 1) * 10], runs=3, measures=True)


def test_a_few_studies_are_honest_whatever_the_server_broadcasts() -> None:
    """Private training of a dense model, under each kind of broadcast."""
    odd_ones = cycle(("first", "far", "twin"))
    part = [replace(FEDAVG, neighbour=neighbour) for _, neighbour in zip(BROADCASTS, odd_ones, strict=False)]
    findings = _require_honest(part, runs=2, measures=False, sent=list(BROADCASTS))
    assert len({found.study for found in findings}) == len(BROADCASTS), (
        "a study that is refused tells nothing"
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", range(COUNT // 10))
def test_all_studies_are_honest_whatever_the_server_broadcasts(part: int) -> None:
    kinds = list(BROADCASTS)
    turned = [kinds[(10 * part + number) % len(kinds)] for number in range(10)]
    _require_honest(cases()[part * 10 : (part + 1) * 10], runs=3, measures=False, sent=turned)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_is_refused_hides_no_level() -> None:
    """All of the grid runs, and of 200 cases that it leaves out, each is refused by its study's own check."""
    assert not list(refusals(cases()))
    left_out = hidden(COUNT)
    assert {case for case, _ in refusals(left_out)} == set(left_out)
