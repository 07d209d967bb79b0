"""The auditor of whole studies: what it must find, what it must not, and a grid of honest studies.

It must find attacks on six defects that the package had, and thirteen defects that tests plant in it. Its
false alarm is stated in `support.auditor`. The grid comes in parts that share the level by their numbers of
cases, so that all parts together are red once in 1 / LEVEL honest grids. Keys are fixed here, so that what
passes once passes again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pytest
from statistical.audited_grid import (
    AXES,
    BROADCASTS,
    CLIENTS,
    CODES,
    COUNT,
    DELTA,
    EACH,
    LARGE,
    MODELS,
    QUICK,
    Case,
    Dropping,
    cases,
    neighbours,
    pair_of,
    plausible,
    quick,
    records_of,
    shows,
    some_client,
    split_of,
    text_of,
)
from support import auditor
from support.auditor import LEVEL, Finding, Pair, audit, holm, tried
from support.every import every
from support.observed_runs import Records, Sent, couple
from support.observed_runs import text_of as placed
from torch import Tensor, nn

import securefl
from securefl.core.errors import ConfigError, DataError
from securefl.data.sides import Sides

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


# Attacks on the six defects that were in the package ----------------------------------------------

FEDAVG: Final = Case(
    protocol="fedavg",
    source="arrays",
    split="test part",
    model="mlp",
    sum="clear",
    noise="dpsgd",
    unit="record add-remove",
    neighbour="first",
)
FEDLOG: Final = FEDAVG._replace(protocol="fedlog", noise="local")


class Mixing(nn.Module):
    """Scales all records by the largest number among them. Below 1 it does nothing, as in a probe."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        whole = x.flatten(1)
        return self.head(whole / whole.detach().abs().max().clamp(min=1.0))


class MixingWords(nn.Module):
    """A batch norm by hand over the embeddings of texts: of texts that are all alike it is nothing."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(CODES, 4), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        found = self.embedding(x).mean(1)
        return self.head((found - found.mean(0)) / (found.std(0, unbiased=False) + 0.1))


def _mixing() -> Pair:
    rng = np.random.default_rng(2)
    x = np.abs(rng.normal(size=(40, 5)).astype(np.float32)) * 3
    x[0] *= 1e4
    one, other = _of_first((x, np.arange(40) % 3 // 2))
    return Pair(text=text_of(FEDAVG._replace(model="dense")), one=one, other=other, model=Mixing)


def _text() -> Pair:
    case = FEDAVG._replace(source="text", model="words")
    rng = np.random.default_rng(3)
    x = rng.integers(0, CODES // 2, (30, 5))
    x[0] = CODES - 1
    one, other = _of_first((x, np.arange(30) % 3))
    return Pair(text=text_of(case), one=_as_text(one), other=_as_text(other), model=MixingWords)


def _unsplit() -> Pair:
    case = FEDAVG._replace(split="test share")
    rng = np.random.default_rng(4)
    x = rng.normal(size=(60, 5)).astype(np.float32) * 3
    one, other = (side.brought["train"] for side in _of_first((x, np.arange(60) % 3)))
    text = text_of(case).replace("test_share = 0.3\n", "")
    return Pair(text=text, one=Records(brought=one), other=Records(brought=other))


def _silence() -> Pair:
    """A client of two records that holds one out: without the other it has nothing to train on."""
    case = FEDAVG._replace(split="holdout", neighbour="only", protocol="fedavg_rp")
    x = np.array([HELD_OUT, TRAINED_ON], np.float32)[:, None] * np.ones((1, 5), np.float32)
    one, other = _of_first((x, np.array([0, 0])), place=1)
    return Pair(text=text_of(case), one=one, other=other)


def _dropout() -> Pair:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 5)).astype(np.float32) * 3
    one, other = _of_first((x, np.arange(60) % 3))
    return Pair(text=text_of(FEDAVG._replace(model="dropping")), one=one, other=other, model=Dropping)


def _norms() -> Pair:
    """Slopes below 2.6e-23 at activations of 1e19: in float32 the square of a gradient's norm is 0."""

    def steep(own: Sent) -> Sent:
        body, classes = 5 * 4, 3
        found = np.zeros_like(own)
        found[body : body + 4] = 9e18
        found[-classes] = 53.0
        return found

    one, other = _of_first((np.zeros((8, 5), np.float32), np.zeros(8, np.int64)))
    # A rate at which a step moves the model by more than its grid's step.
    text = text_of(FEDAVG).replace("clip_norm = 1.0", "clip_norm = 1e-5")
    text = text.replace("learning_rate = 0.01", "learning_rate = 1000.0")
    return Pair(text=text, one=one, other=other, broadcast=steep)


def _of_first(first: tuple[Any, Any], place: int = 0) -> tuple[Records, Records]:
    """Neighbours whose first client has these records, and these without one."""
    whole, _ = neighbours(FEDAVG)
    rest, test = whole.brought["train"][1:], whole.brought["test"]
    x, y = first
    sides = (first, (np.delete(x, place, 0), np.delete(y, place)))
    made = [Records(brought={"train": [own, *rest], "test": test}) for own in sides]
    return made[0], made[1]


def _as_text(records: Records) -> Records:
    clients = records.brought["train"]
    rng = np.random.default_rng(6)
    others = [(rng.integers(0, CODES // 2, (8, 5)), np.arange(8) % 3) for _ in clients[1:]]
    return Records(brought=split_of([clients[0], *others], others[0], "text", 3))


HELD_OUT, TRAINED_ON = 2.0, 1.0
"""Records of this value are on these sides of the hold-out of seed 1, where it went by a public seed."""
ATTACKS: Final[Mapping[str, Callable[[], Pair]]] = {
    "a model that mixes records": _mixing,
    "a model of text that mixes records": _text,
    "the default test split": _unsplit,
    "a client's silence": _silence,
    "dropout": _dropout,
    "squares that vanish": _norms,
}


@pytest.mark.parametrize("name", list(ATTACKS))
def test_an_attack_on_the_old_version_is_refused_or_harmless_here(name: str) -> None:
    findings = tried(replace(ATTACKS[name](), name=name), runs=4, measures=False)
    assert not holm(findings), auditor.table(findings)


# Planted ones --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A defect. case: where it shows. plant: puts it into the package. by: which distinguisher finds it."""

    case: Case
    plant: Callable[[pytest.MonkeyPatch], None]
    by: str
    runs: int = 4
    changes: Mapping[str, str] | None = None

    def findings(self) -> list[Finding]:
        """What the auditor says of this study as the package is at hand."""
        pair = pair_of(self.case)
        text = pair.text
        for old, new in (self.changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        return audit(replace(pair, text=text), runs=self.runs, measures=False)


def _less_noise(patch: pytest.MonkeyPatch) -> None:
    from securefl.mechanisms import mechanism

    rounded = mechanism.rounded
    patch.setattr(mechanism, "rounded", lambda count, sigma, source: rounded(count, 0.9 * sigma, source))


def _no_clip(patch: pytest.MonkeyPatch) -> None:
    from securefl.dp import clipping

    to_grid = clipping.to_grid
    patch.setattr(clipping, "to_grid", lambda records, step, limit: to_grid(records, step, 8 * limit))


def _everybody_sampled(patch: pytest.MonkeyPatch) -> None:
    from securefl.training import private_steps

    poisson = private_steps.poisson
    patch.setattr(private_steps, "poisson", lambda n, rate, source: poisson(n, 1.0, source))


def _twice(patch: pytest.MonkeyPatch) -> None:
    from securefl.engine.party.computing import Computing

    context = Computing._job

    def doubled(own: Computing, *args: Any) -> Any:
        made = context(own, *args)
        return replace(made, x=np.concatenate([made.x[:1], made.x]), y=np.concatenate([made.y[:1], made.y]))

    patch.setattr(Computing, "_job", doubled)


def _real_count(patch: pytest.MonkeyPatch) -> None:
    from securefl.algorithm.plan import Plan

    patch.setattr(Plan, "count", lambda plan, records: records)


def _silent(patch: pytest.MonkeyPatch) -> None:
    from securefl.engine.party.contributing import Contributing

    contribute = Contributing._contribute

    def fewer(own: Contributing, task: Any, *args: Any) -> Any:
        if len(own.values._records[task.client][0]) < 8:
            raise DataError("Expected eight records, got fewer: it abstains.")
        return contribute(own, task, *args)

    patch.setattr(Contributing, "_contribute", fewer)
    patch.setattr(Contributing, "_speaks", lambda own, task, charges: False)


def _longer(patch: pytest.MonkeyPatch) -> None:
    from securefl.engine.party.contributing import Contributing

    contribute = Contributing._contribute

    def padded(own: Contributing, task: Any, *args: Any) -> Any:
        count = len(own.values._records[task.client][0])
        return tuple(replace(one, _sealed=bytes(count)) for one in contribute(own, task, *args))

    patch.setattr(Contributing, "_contribute", padded)


def _below_the_grid(patch: pytest.MonkeyPatch) -> None:
    from securefl.engine import server

    with_noise = server.with_noise

    def leaking(plan: Any, record: Any, query: Any, answers: Any, header: Any) -> Any:
        noised = with_noise(plan, record, query, answers, header)
        steps = {one.spec.name: one.spec.grid.step for one in query.sums}
        totals = {
            name: replace(
                own, value=own.value + steps[name] * (answers.totals[name].value / steps[name] % 4) / 8
            )
            for name, own in noised.totals.items()
        }
        return replace(noised, totals=totals)

    patch.setattr(server, "with_noise", leaking)


def _one_noise(patch: pytest.MonkeyPatch) -> None:
    from securefl.engine.party import contributing
    from securefl.mechanisms import protecting

    protect, first = contributing.protect, {}  # type: ignore[var-annotated]

    def repeating(protection: Any, value: Any, *, key: Any, secret: Any, **given: Any) -> Any:
        kept = first.setdefault((key.session, key.holder), secret)
        return protect(protection, value, key=key, secret=kept, **given)

    patch.setattr(protecting, "_place", lambda key: key.name.encode())
    patch.setattr(contributing, "protect", repeating)


def _split_by_place(patch: pytest.MonkeyPatch) -> None:
    def by_place(x: Any, share: float) -> Any:
        return np.random.default_rng(len(x)).random(len(x)) < share

    patch.setattr(Sides, "apart", lambda own, x, y, share, purpose: by_place(x, share))


def _charged_once(patch: pytest.MonkeyPatch) -> None:
    from securefl.accounting.budget import Budget

    worst, first = Budget.worst, {}  # type: ignore[var-annotated]

    def cached(own: Budget, party: str) -> float:
        found = worst(own, party)
        return first.setdefault((id(own), party), found) if found else found

    patch.setattr(Budget, "worst", cached)


def _no_beginning(patch: pytest.MonkeyPatch) -> None:
    from securefl.study import world

    build = world.build

    def refusing(*given: Any, **named: Any) -> Any:
        made = build(*given, **named)
        if sum(len(x) for x, _ in made.records) % 8:
            raise DataError("Expected full batches of eight records, got a part of one.")
        return made

    patch.setattr(world, "build", refusing)


def _bare_entry(patch: pytest.MonkeyPatch) -> None:
    from securefl.mechanisms import mechanism

    rounded = mechanism.rounded

    def partly(*given: Any) -> Any:
        drawn = rounded(*given).copy()
        drawn[0] = 0
        return drawn

    patch.setattr(mechanism, "rounded", partly)


PLANTS: Final[Mapping[str, Plant]] = {
    "nine tenths of the noise": Plant(
        case=FEDLOG,
        plant=_less_noise,
        by="values",
        runs=8,
        changes={"hidden = [4]": "hidden = [32]"},  # wider, a run has seven times as many noised values
    ),
    "no clip": Plant(
        case=FEDAVG._replace(unit="client zero-out", noise="local"), plant=_no_clip, by="values"
    ),
    "every record in every step": Plant(
        case=FEDAVG,
        plant=_everybody_sampled,
        by="values",
        changes={"sampling_rate = 1.0": "sampling_rate = 0.1"},
    ),
    "a record that counts twice": Plant(case=FEDLOG, plant=_twice, by="values", runs=8),
    "the real count told": Plant(case=FEDAVG._replace(protocol="fedavg_rp"), plant=_real_count, by="public"),
    "a client that falls silent": Plant(case=FEDLOG, plant=_silent, by="silence"),
    "a length that tells of records": Plant(case=FEDLOG, plant=_longer, by="lengths"),
    "last bits below the grid": Plant(
        case=FEDLOG._replace(noise="central"), plant=_below_the_grid, by="last bits"
    ),
    "one noise for two rounds": Plant(
        case=FEDAVG._replace(unit="client zero-out", noise="local"), plant=_one_noise, by="reuse"
    ),
    "a split by place": Plant(
        case=FEDLOG._replace(split="holdout"), plant=_split_by_place, by="values", runs=8
    ),
    "a study that does not begin": Plant(case=FEDLOG, plant=_no_beginning, by="start"),
    "an entry without noise": Plant(case=FEDLOG, plant=_bare_entry, by="constants"),
    "two releases charged as one": Plant(case=FEDAVG, plant=_charged_once, by="values", runs=8),
}


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


# Odd records --------------------------------------------------------------------------------------

ODD: Final = (
    "empty",
    "not finite",
    "a label of no class",
    "a code beyond the embedding",
    "minus zero",
    "no id",
    "a broken line",
)
"""What a client's records may be, beside those of the grid."""


def odd_cases() -> list[tuple[str, str]]:
    """Each kind of odd records under each split; a text has no test share."""
    found = product(ODD, AXES["split"])
    return [(kind, split) for kind, split in found if "embedding" not in kind or split != "test share"]


def odd(kind: str, split: str = "test part") -> Pair:
    """Neighbours of which the second has an odd record, or none at all."""
    text = kind == "a code beyond the embedding"
    source = {"a code beyond the embedding": "text", "no id": "typed", "a broken line": "table"}
    case = Case(
        protocol="fedavg",
        source=source.get(kind, "arrays"),
        split=split,
        model="words" if text else "mlp",
        sum="clear",
        noise="dpsgd",
        unit="record add-remove",
        neighbour="first",
    )
    rng = np.random.default_rng(8)
    clients = [some_client(case, rng, EACH) for _ in range(CLIENTS)]
    test = some_client(case, rng, 6)
    x, y = (own.copy() for own in clients[0])
    one = (x, y)
    match kind:
        case "empty":
            one, other = (x[:1], y[:1]), (x[:0], y[:0])
        case "not finite":
            one, other = (x[1:], y[1:]), (np.concatenate([x[:1] * np.nan, x[1:]]), y)
        case "a label of no class":
            one, other = (x[1:], y[1:]), (x, np.where(np.arange(len(y)) == 0, 3, y))
        case "a code beyond the embedding":
            one, other = (x[1:], y[1:]), (np.concatenate([x[:1] + CODES, x[1:]]), y)
        case "no id" | "a broken line":
            one = other = (x, y)
        case _:
            zero = np.concatenate([x[:1] * 0, x[1:]])
            one, other = (zero[1:], y[1:]), (np.concatenate([-zero[:1], x[1:]]), y)
    first, second = (records_of(case, [own, *clients[1:]], test) for own in (one, other))
    first, second = (replace(own, files=_files(own, kind, end=own is second)) for own in (first, second))
    name, model = f"{kind}/{split}", MODELS.get(case.model)
    return Pair(text=text_of(case), one=first, other=second, name=name, delta=DELTA, model=model)


def _files(records: Records, kind: str, end: bool) -> Mapping[str, Any]:
    """The files of typed or broken records. end: whether the odd record stands at their end."""
    if kind not in ("no id", "a broken line"):
        return records.files
    people: Any = records.files["people.csv"]
    if kind == "a broken line":
        return {**records.files, "people.csv": people.to_csv(index=False).encode() + b'"\xff,1\n' * end}
    # In float64, these ids would be one number.
    ids = people["hospital"].str[1:].astype("Int64") + LARGE
    rows = people.assign(hospital=ids)
    odd = people[:1].assign(hospital=pd.array([None], "Int64"))
    return {
        **records.files,
        "people.parquet": (pd.concat([rows, odd]) if end else rows).to_parquet(index=False),
    }


@pytest.mark.parametrize(("kind", "split"), odd_cases())
def test_odd_records_answer_as_any_other(kind: str, split: str) -> None:
    """On whichever side a key puts it: under three keys a record is held out and trained on."""
    findings = audit(odd(kind, split), runs=3, measures=split == "test part")
    assert findings
    assert not holm(findings), auditor.table(findings)


@every(("kind", "split"), odd_cases())
def test_a_plan_does_not_tell_of_odd_records(
    kind: str, split: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pair, told = odd(kind, split), []
    couple(monkeypatch, b"plan")
    for side in (pair.one, pair.other):
        side.write(tmp_path)
        text = placed(pair.text, str(tmp_path))
        told.append(securefl.forecast(text, data=side.brought, model=pair.model, progress=False))
    one, other = (own.costs.drop(columns="seconds").to_csv() for own in told)
    assert one == other
    assert told[0].table.equals(told[1].table)


# The grid ------------------------------------------------------------------------------------------


def hidden(count: int) -> tuple[Case, ...]:
    """So many cases that `plausible` leaves out: a study's own check must refuse each."""
    chance = random.Random(35)
    axes = list(AXES.values())
    found: list[Case] = []
    while len(found) < count:
        case = Case(**{axis: chance.choice(own) for axis, own in zip(AXES, axes, strict=True)})
        if not plausible(case) and shows(case):
            found.append(case)
    return tuple(found)


def refusals(of: Sequence[Case]) -> Iterator[tuple[Case, str]]:
    """The cases that a study's own check refuses, and why."""
    for case in of:
        try:
            audit(pair_of(case), runs=2)
        except ConfigError as error:
            yield case, str(error)


def levels(of: Sequence[Case]) -> Mapping[str, Mapping[str, int]]:
    """How many of these cases have each level of each axis."""
    return {
        axis: {level: sum(getattr(case, axis) == level for case in of) for level in AXES[axis]}
        for axis in AXES
    }


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
        for found in tried(pair_of(case, kind), runs=runs, measures=measures)
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
    part = [FEDAVG._replace(neighbour=neighbour) for _, neighbour in zip(BROADCASTS, odd_ones, strict=False)]
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
