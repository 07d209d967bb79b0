"""The tables "Who learns what" of the documents, from the words of the privacy card.

    python tools/who_learns.py [--write]    # README.md and docs/threat-model.md: are they so, or write them

Each row is a case: a study's text, and one value of its arm. The study is parsed and the arm built as in a
run. So a row has the words of the card (`engine.privacy_card`) and the charge of that value
(`mechanisms.charge_of`).
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import made
import tomli_w
from dp_accounting import DpEvent, NonPrivateDpEvent, NoOpDpEvent

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.release import KEY_HOLDER, OTHERS, SERVER
from securefl.engine import privacy_card
from securefl.mechanisms import charges
from securefl.mechanisms.agreed import stance
from securefl.study.config import parse
from securefl.study.world import build
from securefl.training.task import Problem

ROOT = Path(__file__).parents[1]
STATE = "<!-- kept state: made by python tools/who_learns.py --write -->"
BEGIN = "<!-- who learns what: made by python tools/who_learns.py --write -->"
END = "<!-- end -->"
README, MODEL = "README.md", "docs/threat-model.md"
PAGES = (README, MODEL)

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

[privacy]
sum = "clear"
scores = "clear"
noise = "none"
unit = "record"
adjacency = "replace-one"
delta = 1e-5
budget = inf
adversaries = ["others"]
non_private = [
    "update", "map", "profile", "direction", "loss", "size", "statistic", "consensus", "votes", "counts",
]
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
_SERVERS = {"lying": "active", "following": "semi-honest"}
_FOREIGN = ValueSpec(name="update", reduction="sum", reveals="its model update", form="real")
WAYS, SCORES = ("clear", "masked", "ckks", "two-server"), ("clear", "ckks", "pads")
_COHORT = {
    "corrupt": 0.1,
    "dropout": 0.1,
    "min_cohort_size": 10,
    "min_honest": 5,
    "max_client_weight": 0.4,
    "min_num_examples": 50,
    "max_num_examples": 90,
}
_NOISED = {"adjacency": "add-remove", "epsilon": 2.0}
_LOCAL = {**_NOISED, "noise": "local"}
_PER_CLIENT = {"unit": "client", "adjacency": "zero-out", "epsilon": 2.0, "noise": "local"}
_SHARES = {**_NOISED, "sum": "masked", "noise": "distributed"}
_AVERAGING = {"protocol": "fedavg", "fraction": 0.5, "aggregation": "partial"}
_PROFILE = {"protocol": "fedprof", "fraction": 0.5, "aggregation": "partial"}
_CLIPPED = _PROFILE | {"clip": {"outputs": 2.0, "squares": 4.0}}
_FEDLOG = {"protocol": "fedlog"}
_ADDS = {"protocol": "adds", "fraction": 0.5, "importance": "lrp", "optimizer": "sgd", "rate": 0.02}
_LOSS = {"protocol": "active_fl", "fraction": 0.5}
_SKETCH, _FEDDBE = {"protocol": "cs_fl", "fraction": 0.5}, {"protocol": "feddbe", "fraction": 0.5}


@dataclass(frozen=True)
class Case:
    """One row. both: whether the README has it too.

    row: the first cell. value: its name in the ledger. arm: the study's. privacy: what differs in [privacy].
    """

    row: str
    value: str
    arm: Mapping[str, Any]
    privacy: Mapping[str, Any]
    both: bool = True

    def text(self) -> str:
        """The study, as TOML."""
        study = tomllib.loads(_HEAD + _DPSGD * ("[dpsgd]" in self.row))
        privacy = study["privacy"] = study["privacy"] | self.privacy
        if privacy["sum"] != "clear" or privacy["noise"] == "distributed":
            privacy |= _COHORT
        if privacy["unit"] == "client":
            study["local"]["update_bound"] = 1.0
        return tomli_w.dumps(study | {"arm": [{"name": "x", **self.arm}]})


CASES = (
    *(Case(f'update, `sum = "{way}"`', "update", _AVERAGING, {"sum": way}) for way in WAYS),
    Case("update, clear, `[dpsgd]`", "update", _AVERAGING, {"adjacency": "add-remove"}),
    Case("update, clear, local noise, per client", "update", _AVERAGING, _PER_CLIENT),
    Case(
        "update, masked, distributed noise, per client",
        "update",
        _AVERAGING,
        {**_PER_CLIENT, "sum": "masked", "noise": "distributed"},
        False,
    ),
    Case("map (ADDS), clear", "map", _ADDS, {}),
    Case("update (STC), clear", "update", {"protocol": "stc", "fraction": 0.5, "p": 0.1}, {}, False),
    Case("sketch (CS-FL), clear", "update", _SKETCH, {}, False),
    Case("votes (CS-FL), clear", "votes", _SKETCH, {}, False),
    *(Case(f'profile, `scores = "{way}"`', "profile", _PROFILE, {"scores": way}) for way in SCORES),
    Case(
        'profile, mean-only, `scores = "ckks"`',
        "profile",
        _PROFILE | {"variant": "mean-only"},
        {"scores": "ckks"},
        False,
    ),
    Case("profile, clear, noise", "profile", _CLIPPED, _LOCAL, False),
    Case("profile, pads, noise", "profile", _CLIPPED, {**_LOCAL, "scores": "pads"}, False),
    Case(
        'direction (FLTrust), `scores = "pads"`',
        "direction",
        {"protocol": "fltrust", "fraction": 0.5},
        {"scores": "pads"},
        False,
    ),
    Case("statistic, local noise", "statistic", _FEDLOG, _LOCAL),
    Case("statistic, masked, distributed noise", "statistic", _FEDLOG, _SHARES),
    Case("statistic, clear, distributed noise", "statistic", _FEDLOG, {**_SHARES, "sum": "clear"}, False),
    Case("statistic, central noise", "statistic", _FEDLOG, {**_NOISED, "noise": "central"}),
    Case(
        "statistic, two servers, key holder's noise",
        "statistic",
        _FEDLOG,
        {**_NOISED, "sum": "two-server", "noise": "key-holder"},
    ),
    Case("statistic of heads, masked, distributed noise", "statistic", {"protocol": "heads"}, _SHARES, False),
    Case("consensus (FedDBE), masked", "consensus", _FEDDBE, {"sum": "masked"}, False),
    Case("fine-tuned (FedBABU), clear", "tuned", {"protocol": "fedbabu", "fraction": 0.5}, {}, False),
    Case("loss (Active FL)", "loss", _LOSS, {}),
    Case("loss, `loss_bound` and noise", "loss", _LOSS | {"loss_bound": 5.0}, _LOCAL, False),
    Case("number of records, replace-one", "size", _LOSS, {}),
    Case("number of records, add-remove, noise", "size", _LOSS | {"loss_bound": 5.0}, _LOCAL, False),
)


@cache
def _problem() -> Problem:
    return build(parse(CASES[0].text()), 1).problem


def planned(text: str) -> tuple[Plan, list[ValueSpec]]:
    """The plan of a study's arm, and the specs of its values."""
    study, base = parse(text), _problem()

    def of(specs: Iterable[ValueSpec]) -> Plan:
        return study.privacy.plan(2, list(specs), records=base.records, clients=base.clients)

    problem = replace(base, local=study.local, private=study.private, planned=of)
    specs = [own.spec for own in study.arms[0].options.build(problem).contributions]
    return of(specs), specs


def composed(case: Case) -> tuple[Plan, ValueSpec]:
    """The plan of a case, and the spec of its value."""
    plan, specs = planned(case.text())
    (spec,) = [own for own in specs if own.name == case.value]
    return plan, spec


def _cost(event: DpEvent) -> str:
    return {NonPrivateDpEvent: "ε = ∞", NoOpDpEvent: "no charge"}.get(type(event), "finite ε")


def cells(case: Case, page: str) -> list[str]:
    """A row: the value, what the server and the key holder learn, and the charge against other clients."""
    plan, spec = composed(case)
    charge = charges.charge_of(plan, spec).by_party()
    told = {p: privacy_card.learns(plan, [spec], p, assumptions=False) for p in (SERVER, KEY_HOLDER)}
    if page != MODEL:
        told = {party: re.sub(r" \([^()]*\)", "", said) for party, said in told.items()}  # in brief
    cost = {party: _cost(event) for party, event in charge.items()}
    holder = f"{told[KEY_HOLDER]}: {cost[KEY_HOLDER]}".removesuffix(": no charge")
    return [case.row, f"{told[SERVER]}: {cost[SERVER]}", holder, cost[OTHERS]]


def table(page: str) -> str:
    """The whole part of a page between its markers."""
    rows = [["a client's", "server", "key holder", "other clients"]]
    rows += [cells(case, page) for case in CASES if case.both or page == MODEL]
    # The sentence of a hidden sum holds for all rows: it says what is so in such a sum alone.
    plan, spec = next((plan, spec) for plan, spec in map(composed, CASES) if plan.hidden)
    others = privacy_card.learns(plan, [spec], OTHERS)
    said = f"Other clients learn {others}. Their column is its charge."
    return f"{textwrap.fill(said, 118)}\n\n{_lines(rows)}"


_KEEPING = (
    ("fedavg, fedprox, fedadam, fedavg_rp, cfcfm", "fedavg", {"fraction": 1.0}),
    ("the same with `stale`", "fedavg", {"fraction": 1.0, "aggregation": "full", "stale": True}),
    ("fedprof, active_fl, fedcor, pow_d", "fedprof", {"fraction": 1.0}),
    ("feddrop, fedbabu, pfedme", "pfedme", {"lamda": 2.0}),
    ("fedlog, public body", "fedlog", {}),
    ("fedlog, private body", "fedlog", {"body": "private"}),
    ("fedproto", "fedproto", {}),
    ("heads", "heads", {"head": "prototypes"}),
    ("adds", "adds", _ADDS),
    ("fltrust", "fltrust", {"fraction": 1.0}),
    ("lg_fedavg, fedper, fedrep", "lg_fedavg", {}),
    ("feddbe", "feddbe", {}),
    ("stc", "stc", {"fraction": 1.0, "p": 0.1}),
    ("cs_fl", "cs_fl", {"fraction": 1.0, "sparsity": 0.01}),
)
"""A row's first cell, and an arm that stands for all that it names."""


_OTHERS = "Flower apps, loops, protocols of others and models with code of a study's own, of real numbers"


def state_table() -> str:
    """By protocol, sum and server: whether single values without noise stay hidden (`agreed.stance`)."""
    rows = [["protocol", *(f"`{how}`, {mode}" for how in WAYS for mode in _SERVERS)]]
    for row, protocol, options in _KEEPING:
        rows.append([row, *(stance(*one) for one in served({**options, "protocol": protocol}))])
    own = served({"protocol": "fedavg", "fraction": 1.0})
    rows.append([_OTHERS, *(stance(plan, [_FOREIGN]) for plan, _ in own)])
    return _lines(rows)


def _lines(rows: list[list[str]]) -> str:
    """A table in Markdown. rows: its heading first."""
    heading, *rest = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([heading, "|---" * len(rows[0]) + "|", *rest])


def served(arm: Mapping[str, Any]) -> list[tuple[Plan, list[ValueSpec]]]:
    """An arm's plans without noise, and the specs of its values, for each column of `state_table`."""
    plans = [planned(Case("", "", arm, {"sum": how}).text()) for how in WAYS]
    return [(replace(plan, secagg=mode), specs) for plan, specs in plans for mode in _SERVERS.values()]


def filled(page: str, text: str) -> str:
    """A page's text with its tables made anew. Raises ValueError if it has not a pair of markers for each."""
    makers = {BEGIN: lambda: table(page)} | ({STATE: state_table} if page == MODEL else {})
    for begin, make in makers.items():
        head, *rest = text.split(begin)
        if len(rest) != 1 or END not in rest[0]:
            raise ValueError(f"Expected {begin} once each in {page}, and {END} after it.")
        text = f"{head}{begin}\n{make()}\n{END}{rest[0].split(END, 1)[1]}"
    return text


if __name__ == "__main__":
    made.main({ROOT / page: filled(page, (ROOT / page).read_text(encoding="utf-8")) for page in PAGES})
