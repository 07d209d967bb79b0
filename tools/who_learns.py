"""The tables "Who learns what" of the documents, from the words of the privacy card.

    python tools/who_learns.py            # the table of each page
    python tools/who_learns.py --write    # write them between the markers of README.md and two pages of docs

Each row is a case: a study's text, and one value of its arm. The study is parsed and the arm built as in a
run. So a row has the words of the card (`engine.privacy_card`) and the charge of that value
(`mechanisms.charge_of`).
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from dp_accounting import DpEvent, NonPrivateDpEvent, NoOpDpEvent

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.release import KEY_HOLDER, OTHERS, SERVER
from securefl.engine import privacy_card
from securefl.mechanisms import charges
from securefl.study.config import parse
from securefl.study.seeded import World
from securefl.study.world import build

ROOT = Path(__file__).parents[1]
BEGIN = "<!-- who learns what: made by python tools/who_learns.py --write -->"
END = "<!-- end -->"
README, FEDERATION, MODEL = "README.md", "docs/federation.md", "docs/threat-model.md"
PAGES = (README, FEDERATION, MODEL)
_BOTH, _MODEL = frozenset({README, MODEL}), frozenset({MODEL})

_HEAD = """
[study]
name = "who learns what"
rounds = 2
seeds = [1]

[data]
source = "digits"
clients = 20
partition = { kind = "iid" }

[model]
kind = "mlp"
hidden = [8]

[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 16
"""
_DPSGD = """
[dpsgd]
clip_norm = 1.0
noise_multiplier = 9.12
sampling_rate = 0.2
expected_batch = 14
steps = 15
optimizer = "sgd"
learning_rate = 0.05
"""
_COHORT = {
    "corrupt": "0.1",
    "dropout": "0.1",
    "min_cohort_size": "10",
    "min_honest": "5",
    "max_client_weight": "0.4",
    "min_num_examples": "50",
    "max_num_examples": "90",
}
_NOISED = {"adjacency": '"add-remove"', "epsilon": "2.0"}
_PER_CLIENT = {"unit": '"client"', "adjacency": '"zero-out"', "epsilon": "2.0", "noise": '"local"'}
_TRUST = 'protocol = "fltrust"\nfraction = 0.5'
_MODE_E = {"parameters": '"strong-encrypted"'}
_LOSS = 'protocol = "active_fl"\nfraction = 0.5'
_PROFILE = 'protocol = "fedprof"\nfraction = 0.5\naggregation = "partial"'


@dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        row: the first cell.
        value: the name of the value in the ledger.
        arm: the lines of the study's arm.
        privacy: lines of [privacy] that differ from a study without protection.
        pages: the pages that have the row. `OVER_FLOWER` names the rows of the federation's page.
        bound: `update_bound` in [local].
        dpsgd: whether clients train privately.
    """

    row: str
    value: str
    arm: str
    privacy: Mapping[str, str]
    pages: frozenset[str] = _BOTH
    bound: bool = False
    dpsgd: bool = False

    def text(self) -> str:
        """The study, as TOML."""
        hidden = self.privacy.get("sum", '"clear"') != '"clear"'
        together = hidden or self.privacy.get("noise") == '"distributed"'
        lines = {
            "sum": '"clear"',
            "scores": '"clear"',
            "noise": '"none"',
            "unit": '"record"',
            "adjacency": '"replace-one"',
            "delta": "1e-5",
            "budget": "inf",
            "adversaries": '["others"]',
            "non_private": "[]",
            **(_COHORT if together else {}),
            **self.privacy,
        }
        section = "\n".join(f"{word} = {value}" for word, value in lines.items())
        bound = "update_bound = 1.0\n" if self.bound else ""
        private = _DPSGD if self.dpsgd else ""
        return f'{_HEAD}{bound}\n[privacy]\n{section}\n{private}\n[[arm]]\nname = "x"\n{self.arm}\n'


def _update(row: str, pages: frozenset[str] = _BOTH, dpsgd: bool = False, **privacy: str) -> Case:
    return Case(row, "update", _AVERAGING, privacy, pages, dpsgd=dpsgd)


def _per_client(row: str, pages: frozenset[str] = _BOTH, **privacy: str) -> Case:
    return Case(row, "update", _AVERAGING, {**_PER_CLIENT, **privacy}, pages, bound=True)


def _profile(row: str, scores: str, more: str = "", **privacy: str) -> Case:
    return Case(row, "profile", f"{_PROFILE}\n{more}", {"scores": scores, **privacy}, _BOTH)


def _statistic(row: str, pages: frozenset[str] = _BOTH, arm: str = "fedlog", **privacy: str) -> Case:
    return Case(row, "statistic", f'protocol = "{arm}"', {**_NOISED, **privacy}, pages)


_AVERAGING = 'protocol = "fedavg"\nfraction = 0.5\naggregation = "partial"'
_ADDS = 'protocol = "adds"\nfraction = 0.5\nimportance = "lrp"\noptimizer = "sgd"\nrate = 0.02'
_STC = 'protocol = "stc"\nfraction = 0.5\np = 0.1'
_SKETCH = 'protocol = "cs_fl"\nfraction = 0.5'
_PROTOTYPES = 'protocol = "fedproto"\nclient_bound = 20.0'
_FEDPER, _FEDDBE = 'protocol = "fedper"\nfraction = 0.5', 'protocol = "feddbe"\nfraction = 0.5'
_MASKED, _CKKS, _SERVERS = '"masked"', '"ckks"', '"two-server"'
_CLIP = "clip = { outputs = 2.0, squares = 4.0 }"

CASES = (
    _update('update, `sum = "clear"`'),
    _update('update, `sum = "masked"`', sum=_MASKED),
    _update('update, `sum = "ckks"`', sum=_CKKS),
    _update('update, `sum = "two-server"`', sum=_SERVERS),
    _update("update, clear, `[dpsgd]`", dpsgd=True, adjacency='"add-remove"'),
    _update("update, masked, `[dpsgd]`", _MODEL, dpsgd=True, sum=_MASKED, adjacency='"add-remove"'),
    _per_client("update, clear, local noise, per client"),
    _per_client("update, masked, local noise, per client", _MODEL, sum=_MASKED),
    _per_client("update, masked, distributed noise, per client", _MODEL, sum=_MASKED, noise='"distributed"'),
    Case("map (ADDS), clear", "map", _ADDS, {}),
    Case("map (ADDS), masked", "map", _ADDS, {"sum": _MASKED}, _MODEL),
    Case("map (ADDS), clear, noise per client", "map", _ADDS, _PER_CLIENT, _MODEL, bound=True),
    Case("update (STC), clear", "update", _STC, {}, _MODEL),
    Case("update (STC), masked", "update", _STC, {"sum": _MASKED}, _MODEL),
    Case("sketch (CS-FL), clear", "update", _SKETCH, {}, _MODEL),
    Case("sketch (CS-FL), masked", "update", _SKETCH, {"sum": _MASKED}, _MODEL),
    Case("votes (CS-FL), clear", "votes", _SKETCH, {}, _MODEL),
    Case("votes (CS-FL), masked", "votes", _SKETCH, {"sum": _MASKED}, _MODEL),
    Case("statistic (FedProto), masked", "statistic", _PROTOTYPES, {"sum": _MASKED}, _MODEL),
    Case("statistic (FedProto), clear, noise per client", "statistic", _PROTOTYPES, _PER_CLIENT, _MODEL),
    _profile('profile, `scores = "clear"`', '"clear"'),
    _profile('profile, `scores = "ckks"`', '"ckks"'),
    replace(_profile("the same, mean-only", '"ckks"', 'variant = "mean-only"'), pages=_MODEL),
    replace(_profile('the same, `parameters = "strong-encrypted"`', '"ckks"', **_MODE_E), pages=_MODEL),
    _profile('profile, `scores = "pads"`', '"pads"'),
    replace(_profile("profile, clear, noise", '"clear"', _CLIP, noise='"local"', **_NOISED), pages=_MODEL),
    replace(_profile("profile, pads, noise", '"pads"', _CLIP, noise='"local"', **_NOISED), pages=_MODEL),
    Case('direction (FLTrust), `scores = "pads"`', "direction", _TRUST, {"scores": '"pads"'}, _MODEL),
    _statistic("statistic, local noise", noise='"local"'),
    _statistic("statistic, masked, distributed noise", sum=_MASKED, noise='"distributed"'),
    _statistic("statistic, clear, distributed noise", _MODEL, noise='"distributed"'),
    _statistic("statistic, central noise", noise='"central"'),
    _statistic("statistic, two servers, key holder's noise", sum=_SERVERS, noise='"key-holder"'),
    _statistic(
        "statistic of heads, masked, distributed noise", _MODEL, "heads", sum=_MASKED, noise='"distributed"'
    ),
    Case("update of the body (FedPer), clear", "update", _FEDPER, {}, _MODEL),
    Case(
        "update of the body, masked, `[dpsgd]`",
        "update",
        _FEDPER,
        {"sum": _MASKED, "adjacency": '"add-remove"'},
        _MODEL,
        dpsgd=True,
    ),
    Case("consensus (FedDBE), masked", "consensus", _FEDDBE, {"sum": _MASKED}, _MODEL),
    Case(
        "consensus, `mean_bound` and noise per client",
        "consensus",
        f"{_FEDDBE}\nmean_bound = 4.0",
        _PER_CLIENT,
        _MODEL,
        bound=True,
    ),
    Case("fine-tuned (FedBABU), clear", "tuned", 'protocol = "fedbabu"\nfraction = 0.5', {}, _MODEL),
    Case("loss (Active FL)", "loss", _LOSS, {}),
    Case(
        "loss, `loss_bound` and noise",
        "loss",
        f"{_LOSS}\nloss_bound = 5.0",
        {**_NOISED, "noise": '"local"'},
        _MODEL,
    ),
    Case("number of records, replace-one", "size", _LOSS, {}),
    Case(
        "number of records, add-remove, noise",
        "size",
        f"{_LOSS}\nloss_bound = 5.0",
        {**_NOISED, "noise": '"local"'},
        _MODEL,
    ),
)
OVER_FLOWER = (
    'update, `sum = "clear"`',
    'update, `sum = "masked"`',
    'update, `sum = "ckks"`',
    'update, `sum = "two-server"`',
    'profile, `scores = "clear"`',
    'profile, `scores = "ckks"`',
    "statistic, masked, distributed noise",
)
"""The values that `test_flower_studies.py` and `test_flower_strategies.py` send over Flower."""


@cache
def _world() -> World:
    return build(parse(CASES[0].text()), 1)


def composed(case: Case) -> tuple[Plan, ValueSpec]:
    """The plan of a case, and the spec of its value. Every value may leave without noise."""
    study, base = parse(case.text()), _world().problem
    open_values = ("update", "map", "profile", "direction", "loss", "size", "statistic", "consensus", "votes")
    section = replace(study.privacy, non_private=open_values)

    def planned(specs: object) -> Plan:
        return section.plan(2, list(specs), records=base.records, clients=base.clients)  # type: ignore[call-overload]

    problem = replace(base, local=study.local, private=study.private, planned=planned)
    specs = [own.spec for own in study.arms[0].options.build(problem).contributions]
    (spec,) = [own for own in specs if own.name == case.value]
    return planned(specs), spec


def _cost(event: DpEvent) -> str:
    match event:
        case NonPrivateDpEvent():
            return "ε = ∞"
        case NoOpDpEvent():
            return "no charge"
        case _:
            return "finite ε"


def _brief(said: str) -> str:
    """The words without what stands in brackets."""
    return re.sub(r" \([^()]*\)", "", said)


def cells(case: Case, page: str) -> tuple[str, str, str, str]:
    """A row: the value, what the server and the key holder learn, and the charge against other clients."""
    plan, spec = composed(case)
    charge = charges.charge_of(plan, spec).by_party()
    told = {p: privacy_card.learns(plan, [spec], p, assumptions=False) for p in (SERVER, KEY_HOLDER)}
    if page != MODEL:
        told = {party: _brief(said) for party, said in told.items()}
    server = f"{told[SERVER]}: {_cost(charge[SERVER])}"
    exposed = not isinstance(charge[KEY_HOLDER], NoOpDpEvent)
    holder = told[KEY_HOLDER] + (f": {_cost(charge[KEY_HOLDER])}" if exposed else "")
    return case.row, server, holder, _cost(charge[OTHERS])


def pages_of(case: Case) -> frozenset[str]:
    """The pages that have the row of this case."""
    return case.pages | ({FEDERATION} if case.row in OVER_FLOWER else set())


def table(page: str) -> str:
    """The whole part of a page between its markers."""
    rows = [cells(case, page) for case in CASES if page in pages_of(case)]
    # The sentence of a hidden sum holds for all rows: it says what is so in such a sum alone.
    plan, spec = next((plan, spec) for plan, spec in map(composed, CASES) if plan.hidden)
    others = privacy_card.learns(plan, [spec], OTHERS)
    lines = ["| a client's | server | key holder | other clients |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    said = f"Other clients learn {others}. Their column is its charge."
    return "\n".join([*textwrap.wrap(said, 118), "", *lines])


def filled(page: str, text: str) -> str:
    """A page's text with its table made anew. Raises ValueError if it has not one pair of markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"Expected {BEGIN} and {END} once each in {page}.")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{table(page)}\n{END}{tail}"


def main() -> None:
    for page in PAGES:
        if "--write" in sys.argv[1:]:
            path = ROOT / page
            path.write_text(filled(page, path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            print(f"{page}\n\n{table(page)}\n")


if __name__ == "__main__":
    main()
