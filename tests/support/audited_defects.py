"""Attacks on six defects that the package had, and thirteen defects that tests plant in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pytest

from securefl.core.errors import ConfigError, DataError
from securefl.data.sides import Sides
from support.audited_grid import DELTA, MODELS, Case, neighbours, text_of
from support.audited_models import CODES, Dropping, Mixing, MixingWords
from support.auditor import Finding, audit
from support.observed_runs import Records, Sent

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
FEDLOG: Final = replace(FEDAVG, protocol="fedlog", noise="local")


# The six that were in the package ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Attack:
    """A study and two neighbours that an old version told a false finite epsilon of."""

    text: str
    one: Records
    other: Records
    model: Callable[..., Any] | None = None
    broadcast: Callable[[Sent], Sent] | None = None

    def findings(self, name: str) -> list[Finding] | None:
        """What the auditor says; None for a study that is refused."""
        try:
            return audit(
                self.text,
                self.one,
                self.other,
                runs=4,
                model=self.model,
                name=name,
                delta=DELTA,
                measures=False,
                broadcast=self.broadcast,
            )
        except ConfigError:
            return None


def _mixing() -> Attack:
    rng = np.random.default_rng(2)
    x = np.abs(rng.normal(size=(40, 5)).astype(np.float32)) * 3
    x[0] *= 1e4
    one, other = _of_first((x, np.arange(40) % 3 // 2))
    return Attack(text=text_of(replace(FEDAVG, model="dense")), one=one, other=other, model=Mixing)


def _text() -> Attack:
    case = replace(FEDAVG, source="text", model="words")
    rng = np.random.default_rng(3)
    x = rng.integers(0, CODES // 2, (30, 5))
    x[0] = CODES - 1
    one, other = _of_first((x, np.arange(30) % 3))
    return Attack(text=text_of(case), one=_as_text(one), other=_as_text(other), model=MixingWords)


def _split() -> Attack:
    case = replace(FEDAVG, split="test share")
    rng = np.random.default_rng(4)
    x = rng.normal(size=(60, 5)).astype(np.float32) * 3
    one, other = (side.brought["train"] for side in _of_first((x, np.arange(60) % 3)))
    text = text_of(case).replace("test_share = 0.3\n", "")
    return Attack(text=text, one=Records(brought=one), other=Records(brought=other))


def _silence() -> Attack:
    """A client of two records that holds one out: without the other it has nothing to train on."""
    case = replace(FEDAVG, split="holdout", neighbour="only", protocol="fedavg_rp")
    x = np.array([HELD_OUT, TRAINED_ON], np.float32)[:, None] * np.ones((1, 5), np.float32)
    one, other = _of_first((x, np.array([0, 0])), place=1)
    return Attack(text=text_of(case), one=one, other=other)


def _dropout() -> Attack:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 5)).astype(np.float32) * 3
    one, other = _of_first((x, np.arange(60) % 3))
    return Attack(text=text_of(replace(FEDAVG, model="dropping")), one=one, other=other, model=Dropping)


def _norms() -> Attack:
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
    return Attack(text=text, one=one, other=other, broadcast=steep)


def _of_first(first: tuple[Any, Any], place: int = 0) -> tuple[Records, Records]:
    """Neighbours whose first client has these records, and these without one."""
    whole, _ = neighbours(FEDAVG)
    rest, test = whole.brought["train"][1:], whole.brought["test"]
    x, y = first
    sides = (first, (np.delete(x, place, 0), np.delete(y, place)))
    made = [Records(brought={"train": [own, *rest], "test": test}) for own in sides]
    return made[0], made[1]


def _as_text(records: Records) -> Records:
    from support.audited_grid import _split as joined

    clients = records.brought["train"]
    rng = np.random.default_rng(6)
    others = [(rng.integers(0, CODES // 2, (8, 5)), np.arange(8) % 3) for _ in clients[1:]]
    return Records(brought=joined([clients[0], *others], others[0], "text", 3))


HELD_OUT, TRAINED_ON = 2.0, 1.0
"""Records of this value are on these sides of the hold-out of seed 1, where it went by a public seed."""
ATTACKS: Final[Mapping[str, Callable[[], Attack]]] = {
    "a model that mixes records": _mixing,
    "a model of text that mixes records": _text,
    "the default test split": _split,
    "a client's silence": _silence,
    "dropout": _dropout,
    "squares that vanish": _norms,
}


# Planted ones --------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A defect. case: where it shows. plant: puts it into the package. by: which distinguisher finds it."""

    case: Case
    plant: Callable[[Patch], None]
    by: str
    runs: int = 4
    changes: Mapping[str, str] | None = None

    def findings(self) -> list[Finding]:
        """What the auditor says of this study as the package is at hand."""
        one, other = neighbours(self.case)
        text = text_of(self.case)
        for old, new in (self.changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        return audit(
            text,
            one,
            other,
            runs=self.runs,
            model=MODELS.get(self.case.model),
            name=self.case.name,
            delta=DELTA,
            measures=False,
        )


def _less_noise(patch: Patch) -> None:
    from securefl.mechanisms import mechanism

    rounded = mechanism.rounded
    patch.setattr(mechanism, "rounded", lambda count, sigma, source: rounded(count, 0.9 * sigma, source))


def _no_clip(patch: Patch) -> None:
    from securefl.dp import clipping

    to_grid = clipping.to_grid
    patch.setattr(clipping, "to_grid", lambda records, step, limit: to_grid(records, step, 8 * limit))


def _everybody_sampled(patch: Patch) -> None:
    from securefl.training import private_steps

    poisson = private_steps.poisson
    patch.setattr(private_steps, "poisson", lambda n, rate, source: poisson(n, 1.0, source))


def _twice(patch: Patch) -> None:
    from securefl.engine.party.computing import Computing

    context = Computing._job

    def doubled(own: Computing, *args: Any) -> Any:
        made = context(own, *args)
        return replace(made, x=np.concatenate([made.x[:1], made.x]), y=np.concatenate([made.y[:1], made.y]))

    patch.setattr(Computing, "_job", doubled)


def _real_count(patch: Patch) -> None:
    from securefl.algorithm.plan import Plan

    patch.setattr(Plan, "count", lambda plan, records: records)


def _silent(patch: Patch) -> None:
    from securefl.engine.party.contributing import Contributing

    contribute = Contributing._contribute

    def fewer(own: Contributing, task: Any, *args: Any) -> Any:
        if len(own.values._records[task.client][0]) < 8:
            raise DataError("Expected eight records, got fewer: it abstains.")
        return contribute(own, task, *args)

    patch.setattr(Contributing, "_contribute", fewer)
    patch.setattr(Contributing, "_speaks", lambda own, task, charges: False)


def _longer(patch: Patch) -> None:
    from securefl.engine.party.contributing import Contributing

    contribute = Contributing._contribute

    def padded(own: Contributing, task: Any, *args: Any) -> Any:
        count = len(own.values._records[task.client][0])
        return tuple(replace(one, _sealed=bytes(count)) for one in contribute(own, task, *args))

    patch.setattr(Contributing, "_contribute", padded)


def _below_the_grid(patch: Patch) -> None:
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


def _one_noise(patch: Patch) -> None:
    from securefl.engine.party import contributing
    from securefl.mechanisms import protecting

    protect, first = contributing.protect, {}  # type: ignore[var-annotated]

    def repeating(protection: Any, value: Any, *, key: Any, secret: Any, **given: Any) -> Any:
        kept = first.setdefault((key.session, key.holder), secret)
        return protect(protection, value, key=key, secret=kept, **given)

    patch.setattr(protecting, "_place", lambda key: key.name.encode())
    patch.setattr(contributing, "protect", repeating)


def _split_by_place(patch: Patch) -> None:
    def by_place(x: Any, share: float) -> Any:
        return np.random.default_rng(len(x)).random(len(x)) < share

    patch.setattr(Sides, "apart", lambda own, x, y, share, purpose: by_place(x, share))


def _charged_once(patch: Patch) -> None:
    from securefl.accounting.budget import Budget

    worst, first = Budget.worst, {}  # type: ignore[var-annotated]

    def cached(own: Budget, party: str) -> float:
        found = worst(own, party)
        return first.setdefault((id(own), party), found) if found else found

    patch.setattr(Budget, "worst", cached)


def _no_beginning(patch: Patch) -> None:
    from securefl.study import world

    build = world.build

    def refusing(*given: Any, **named: Any) -> Any:
        made = build(*given, **named)
        if sum(len(x) for x, _ in made.records) % 8:
            raise DataError("Expected full batches of eight records, got a part of one.")
        return made

    patch.setattr(world, "build", refusing)


def _bare_entry(patch: Patch) -> None:
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
        case=replace(FEDAVG, unit="client zero-out", noise="local"), plant=_no_clip, by="values"
    ),
    "every record in every step": Plant(
        case=FEDAVG,
        plant=_everybody_sampled,
        by="values",
        changes={"sampling_rate = 1.0": "sampling_rate = 0.1"},
    ),
    "a record that counts twice": Plant(case=FEDLOG, plant=_twice, by="values", runs=8),
    "the real count told": Plant(case=replace(FEDAVG, protocol="fedavg_rp"), plant=_real_count, by="public"),
    "a client that falls silent": Plant(case=FEDLOG, plant=_silent, by="silence"),
    "a length that tells of records": Plant(case=FEDLOG, plant=_longer, by="lengths"),
    "last bits below the grid": Plant(
        case=replace(FEDLOG, noise="central"), plant=_below_the_grid, by="last bits"
    ),
    "one noise for two rounds": Plant(
        case=replace(FEDAVG, unit="client zero-out", noise="local"), plant=_one_noise, by="reuse"
    ),
    "a split by place": Plant(
        case=replace(FEDLOG, split="holdout"), plant=_split_by_place, by="values", runs=8
    ),
    "a study that does not begin": Plant(case=FEDLOG, plant=_no_beginning, by="start"),
    "an entry without noise": Plant(case=FEDLOG, plant=_bare_entry, by="constants"),
    "two releases charged as one": Plant(case=FEDAVG, plant=_charged_once, by="values", runs=8),
}
