"""The tables "Who learns what" of the documents, from the words of the privacy card.

    python tools/who_learns.py --write    # between the markers of README.md and docs/threat-model.md

Each row is a case: a study's text, and one value of its arm. The study is parsed and the arm built as in a
run. So a row has the words of the card (`engine.privacy_card`) and the charge of that value
(`mechanisms.Protection`).
"""

from __future__ import annotations

import re
import sys
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import tomli_w
from dp_accounting import DpEvent, NonPrivateDpEvent, NoOpDpEvent

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.release import KEY_HOLDER, OTHERS, SERVER
from securefl.engine import privacy_card
from securefl.mechanisms import charges
from securefl.mechanisms.agreed import stance
from securefl.study.config import parse
from securefl.study.seeded import World
from securefl.study.world import build

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
_OPEN = {
    "sum": "clear",
    "scores": "clear",
    "noise": "none",
    "unit": "record",
    "adjacency": "replace-one",
    "delta": 1e-5,
    "budget": inf,
    "adversaries": ["others"],
    "non_private": [
        "update",
        "map",
        "profile",
        "direction",
        "loss",
        "size",
        "statistic",
        "consensus",
        "votes",
        "counts",
    ],
}
_NOISED = {"adjacency": "add-remove", "epsilon": 2.0}
_LOCAL = {**_NOISED, "noise": "local"}
_PER_CLIENT = {"unit": "client", "adjacency": "zero-out", "epsilon": 2.0, "noise": "local"}
_SHARES = {**_NOISED, "sum": "masked", "noise": "distributed"}
_AVERAGING = {"protocol": "fedavg", "fraction": 0.5, "aggregation": "partial"}
_PROFILE = {"protocol": "fedprof", "fraction": 0.5, "aggregation": "partial"}
_CLIPPED = _PROFILE | {"clip": {"outputs": 2.0, "squares": 4.0}}
_FEDLOG, _CKKS = {"protocol": "fedlog"}, {"scores": "ckks"}
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
        privacy = {**_OPEN, **self.privacy}
        if privacy["sum"] != "clear" or privacy["noise"] == "distributed":
            privacy |= _COHORT
        bound = "update_bound = 1.0\n" if privacy["unit"] == "client" else ""
        private = _DPSGD if "[dpsgd]" in self.row else ""
        rest = {"privacy": privacy, "arm": [{"name": "x", **self.arm}]}
        return tomli_w.dumps(tomllib.loads(f"{_HEAD}{bound}{private}") | rest)


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
    Case(
        'profile, `scores = "ckks"`, `parameters = "strong-encrypted"`',
        "profile",
        _PROFILE,
        {**_CKKS, "parameters": "strong-encrypted"},
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
def _world() -> World:
    return build(parse(CASES[0].text()), 1)


def planned(text: str) -> tuple[Plan, list[ValueSpec]]:
    """The plan of a study's arm, and the specs of its values."""
    study, base = parse(text), _world().problem

    def of(specs: object) -> Plan:
        return study.privacy.plan(2, list(specs), records=base.records, clients=base.clients)  # type: ignore[call-overload]

    problem = replace(base, local=study.local, private=study.private, planned=of)
    specs = [own.spec for own in study.arms[0].options.build(problem).contributions]
    return of(specs), specs


def composed(case: Case) -> tuple[Plan, ValueSpec]:
    """The plan of a case, and the spec of its value."""
    plan, specs = planned(case.text())
    (spec,) = [own for own in specs if own.name == case.value]
    return plan, spec


def _cost(event: DpEvent) -> str:
    match event:
        case NonPrivateDpEvent():
            return "ε = ∞"
        case NoOpDpEvent():
            return "no charge"
        case _:
            return "finite ε"


def cells(case: Case, page: str) -> tuple[str, str, str, str]:
    """A row: the value, what the server and the key holder learn, and the charge against other clients."""
    plan, spec = composed(case)
    charge = charges.Protection(plan, spec).charge().by_party()
    told = {p: privacy_card.learns(plan, [spec], p, assumptions=False) for p in (SERVER, KEY_HOLDER)}
    if page != MODEL:
        told = {party: re.sub(r" \([^()]*\)", "", said) for party, said in told.items()}  # in brief
    server = f"{told[SERVER]}: {_cost(charge[SERVER])}"
    exposed = not isinstance(charge[KEY_HOLDER], NoOpDpEvent)
    holder = told[KEY_HOLDER] + (f": {_cost(charge[KEY_HOLDER])}" if exposed else "")
    return case.row, server, holder, _cost(charge[OTHERS])


def table(page: str) -> str:
    """The whole part of a page between its markers."""
    rows = [cells(case, page) for case in CASES if case.both or page == MODEL]
    # The sentence of a hidden sum holds for all rows: it says what is so in such a sum alone.
    plan, spec = next((plan, spec) for plan, spec in map(composed, CASES) if plan.hidden)
    others = privacy_card.learns(plan, [spec], OTHERS)
    lines = ["| a client's | server | key holder | other clients |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    said = f"Other clients learn {others}. Their column is its charge."
    return "\n".join([*textwrap.wrap(said, 118), "", *lines])


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


def state_table() -> str:
    """By protocol, sum and server: whether single values without noise stay hidden (`agreed.stance`)."""
    lines = ["| protocol | " + " | ".join(f"`{how}`, {mode}" for how in WAYS for mode in _SERVERS) + " |"]
    lines.append("|---" * (1 + len(WAYS) * len(_SERVERS)) + "|")
    for row, protocol, options in _KEEPING:
        found = [stance(*one) for one in served({**options, "protocol": protocol})]
        lines.append(f"| {row} | {' | '.join(found)} |")
    own = [stance(plan, [_FOREIGN]) for plan, _ in served({"protocol": "fedavg", "fraction": 1.0})]
    others = "Flower apps, loops, protocols of others and models with code of a study's own, of real numbers"
    lines.append(f"| {others} | {' | '.join(own)} |")
    return "\n".join(lines)


def served(arm: Mapping[str, Any]) -> list[tuple[Plan, list[ValueSpec]]]:
    """An arm's plans without noise, and the specs of its values, for each column of `state_table`."""
    found = []
    for how, secagg in product(WAYS, _SERVERS.values()):
        plan, specs = planned(Case("", "", arm, {"sum": how}).text())
        found.append((replace(plan, secagg=secagg), specs))  # type: ignore[arg-type]
    return found


def filled(page: str, text: str) -> str:
    """A page's text with its tables made anew. Raises ValueError if it has not a pair of markers for each."""
    for begin, made in ((BEGIN, table(page)), (STATE, state_table() if page == MODEL else "")):
        if made and (text.count(begin) != 1 or END not in text.split(begin)[1]):
            raise ValueError(f"Expected {begin} once each in {page}, and {END} after it.")
        if made:
            head, rest = text.split(begin)
            text = f"{head}{begin}\n{made}\n{END}{rest.split(END, 1)[1]}"
    return text


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        text = filled(page, path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8") if "--write" in sys.argv else print(text)
