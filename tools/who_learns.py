"""The tables "Who learns what" of docs/threat-model.md, from the words of the privacy card.

    python tools/who_learns.py [--write]    # docs/threat-model.md: is it so, or write it

Each row is a case: one value of an arm. The study is parsed and the arm built as in a run. So a row has the
words of the card (`engine.privacy_card`) and the charge of that value (`mechanisms.Protection`).
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import made
import tomli_w
from dp_accounting import NonPrivateDpEvent, NoOpDpEvent

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError
from securefl.core.release import KEY_HOLDER, OTHERS, SERVER
from securefl.engine import privacy_card
from securefl.mechanisms import charges
from securefl.mechanisms.agreed import reads_unbound, require_agreed
from securefl.study.config import parse
from securefl.study.seeded import World
from securefl.study.world import build, of_study

PAGE = Path(__file__).parents[1] / "docs" / "threat-model.md"
STATE = "<!-- kept state: made by python tools/who_learns.py --write -->"
BEGIN = "<!-- who learns what: made by python tools/who_learns.py --write -->"
END = "<!-- end -->"

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
update_bound = 1.0

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
min_cohort_size = 10
min_honest = 5
max_client_weight = 0.4
min_num_examples = 50
max_num_examples = 90
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
_LIES, _FOLLOWS = "active", "semi-honest"
_FOREIGN = ValueSpec(name="update", reduction="sum", reveals="its model update", form="real")
HIDDEN = ("masked", "ckks", "two-server")
WAYS, SCORES = ("clear", *HIDDEN), ("clear", "ckks", "pads")
COLUMNS = {
    "a lying server, `masked` or `two-server`": [("masked", _LIES), ("two-server", _LIES)],
    "a lying server, `ckks`": [("ckks", _LIES)],
    "a server that follows the protocol": [(way, _FOLLOWS) for way in HIDDEN],
}
"""Of the table of kept state: the sums and servers that a column holds for."""
_NOTES = {
    ", and single records if it crafts the model": "¹ and single records, if it crafts the model.",
    " (of a class that it alone holds, its own sums; and which classes nobody holds)": (
        "² of a class that one client alone holds, its own sums; and which classes nobody holds."
    ),
    "; the weights of each query, such as the server's baseline": (
        "³ and the weights of each query, such as the server's baseline."
    ),
}
"""Words of the card that stand in many rows. The table has a mark, and behind it a note says them once."""
_BEGINS = {"| of each client ": "| **each:** ", "| the total over the cohort of ": "| **total:** "}
_LEGEND = "**Each:** of each client. **Total:** over the cohort."
_NOISED = {"adjacency": "add-remove", "epsilon": 2.0}
_LOCAL = {**_NOISED, "noise": "local"}
_PER_CLIENT = {**_LOCAL, "unit": "client", "adjacency": "zero-out"}
_SHARES = {**_NOISED, "sum": "masked", "noise": "distributed"}
_DRAWN, _ALL = {"fraction": 0.5}, {"fraction": 1.0}
_HALF = _DRAWN | {"aggregation": "partial"}
_BOUNDED = {"fraction": 0.5, "loss_bound": 5.0}
_ADDS = {"fraction": 0.5, "importance": "lrp", "optimizer": "sgd", "rate": 0.02}

Case = tuple[str, str, str, Mapping[str, Any], Mapping[str, Any]]
"""A row's first cell, a value's name, a protocol, its options, and what is other in [privacy]."""
CASES: list[Case] = [
    *((f'update, `sum = "{way}"`', "update", "fedavg", _HALF, {"sum": way}) for way in WAYS),
    ("update, clear, `[dpsgd]`", "update", "fedavg", _HALF, {"adjacency": "add-remove"}),
    (
        "update, masked, distributed noise, per client",
        "update",
        "fedavg",
        _HALF,
        _PER_CLIENT | {"sum": "masked", "noise": "distributed"},
    ),
    ("map (ADDS), clear", "map", "adds", _ADDS, {}),
    ("update (STC), clear", "update", "stc", {**_DRAWN, "p": 0.1}, {}),
    ("sketch (CS-FL), clear", "update", "cs_fl", _DRAWN, {}),
    ("votes (CS-FL), clear", "votes", "cs_fl", _DRAWN, {}),
    *((f'profile, `scores = "{way}"`', "profile", "fedprof", _HALF, {"scores": way}) for way in SCORES),
    ('direction (FLTrust), `scores = "pads"`', "direction", "fltrust", _DRAWN, {"scores": "pads"}),
    ("statistic, masked, distributed noise", "statistic", "fedlog", {}, _SHARES),
    ("statistic, clear, distributed noise", "statistic", "fedlog", {}, _SHARES | {"sum": "clear"}),
    ("statistic, clear, local noise", "statistic", "fedlog", {}, _LOCAL),
    ("statistic, central noise", "statistic", "fedlog", {}, _NOISED | {"noise": "central"}),
    (
        "statistic, two servers, key holder's noise",
        "statistic",
        "fedlog",
        {},
        _NOISED | {"sum": "two-server", "noise": "key-holder"},
    ),
    ("consensus (FedDBE), masked", "consensus", "feddbe", _DRAWN, {"sum": "masked"}),
    ("fine-tuned (FedBABU), clear", "tuned", "fedbabu", _DRAWN, {}),
    ("loss (Active FL)", "loss", "active_fl", _DRAWN, {}),
    ("number of records, replace-one", "size", "active_fl", _DRAWN, {}),
    ("number of records, add-remove, noise", "size", "active_fl", _BOUNDED, _LOCAL),
]


@cache
def _world() -> World:
    return build(parse(f'{_HEAD}[[arm]]\nname = "x"\nprotocol = "fedlog"'), 1)


def planned(
    protocol: str, options: Mapping[str, Any], privacy: Mapping[str, Any], more: str = ""
) -> tuple[Plan, list[ValueSpec]]:
    """The plan of an arm, and the specs of its values. more: further sections of the study."""
    text = tomllib.loads(_HEAD + more)
    own = text["privacy"] = text["privacy"] | privacy
    if own["sum"] != "clear" or own["noise"] == "distributed":
        own |= {"corrupt": 0.1, "dropout": 0.1}
    study = parse(tomli_w.dumps(text | {"arm": [{"name": "x", "protocol": protocol, **options}]}))
    problem = of_study(_world(), study).problem
    specs = [found.spec for found in study.arms[0].options.build(problem).contributions]
    return study.privacy.plan(2, specs, records=problem.records, clients=problem.clients), specs


def composed(case: Case) -> tuple[Plan, ValueSpec]:
    """The plan of a case, and the spec of its value."""
    row, value, *how = case
    plan, specs = planned(*how, _DPSGD * ("[dpsgd]" in row))
    return plan, next(spec for spec in specs if spec.name == value)


def cells(case: Case) -> list[str]:
    """A row: the value, what the server and the key holder learn, and the charge against other clients."""
    plan, spec = composed(case)
    cost = charges.Protection(plan, spec).charge().by_party()
    said = {NonPrivateDpEvent: "ε ∞", NoOpDpEvent: "no charge"}
    alone = {"ε ∞": "∞", "no charge": "none", "finite ε": "finite"}
    server, holder, others = (said.get(type(event), "finite ε") for event in cost.values())
    told = [privacy_card.learns(plan, [spec], party, assumptions=False) for party in (SERVER, KEY_HOLDER)]
    holds = f"{told[1]}: {holder}".removesuffix(": no charge").removesuffix(": it takes no part")
    return [case[0], f"{told[0]}: {server}", holds, alone[others]]


def table() -> str:
    """What each party learns of each case's value, and what the other clients learn in a hidden sum."""
    # The sentence of a hidden sum holds for all rows: it says what is so in such a sum alone.
    plan, spec = next(found for found in map(composed, CASES) if found[0].hidden)
    others = privacy_card.learns(plan, [spec], OTHERS)
    said = textwrap.fill(f"Other clients learn {others}. The last column is its charge.", 118)
    rows = _lines([["a client's", "server", "key holder", "others' ε"], *map(cells, CASES)])
    notes = " ".join([_LEGEND, *(note for words, note in _NOTES.items() if words in rows)])
    for words, mark in {**{words: note[0] for words, note in _NOTES.items()}, **_BEGINS}.items():
        rows = rows.replace(words, mark)
    return f"{said}\n\n{rows}\n\n{textwrap.fill(notes, 118)}"


_KEEPING = (
    (
        "fedavg, fedprox, fedadam, fedavg_rp, cfcfm, fedprof, active_fl, fedcor, pow_d, fltrust, feddrop, "
        "fedbabu, pfedme, heads, fedlog with a public body",
        "fedavg",
        _ALL,
    ),
    ("any of these with `stale`", "fedavg", {**_ALL, "aggregation": "full", "stale": True}),
    ("adds", "adds", _ADDS),
    ("fedproto, feddbe, lg_fedavg, fedper, fedrep, fedlog with a private body", "fedproto", {}),
    ("stc, cs_fl", "stc", {**_ALL, "p": 0.1}),
)
"""A row's first cell, and an arm that stands for all that it names; tests try each of these."""


def state_table() -> str:
    """By protocol, sum and server: whether single values without noise stay hidden (`stance`)."""
    rows = [["protocol", *COLUMNS]]
    rows += [[row, *map(_stance, served(*arm))] for row, *arm in _KEEPING]
    own = "Flower apps, loops, protocols of others and models with code of a study's own, of real numbers"
    foreign = [[(plan, [_FOREIGN]) for plan, _ in column] for column in served("fedavg", _ALL)]
    rows.append([own, *map(_stance, foreign)])
    return _lines(rows)


_FOLLOWED = frozenset({"ckks"})
"""Sums whose server must follow the protocol whatever the plan says (`engine.privacy_card`)."""


def stance(plan: Plan, sent: Sequence[ValueSpec]) -> Literal["held", "refused", "not held, said"]:
    """Whether single summed values stay hidden from a server as `secagg` describes it.

    Args:
        plan: of an arm.
        sent: the specs of its values.
    """
    if not plan.hidden:
        return "not held, said"
    try:
        for spec in sent:
            charges.Protection(plan, spec).charge()
        require_agreed(plan, sent)
    except ConfigError:
        return "refused"
    said = plan.secagg == "active" and plan.sum in _FOLLOWED
    for spec in sent:
        # A total without noise may tell single values apart by their form.
        tells = (
            spec.reduction == "sum" and spec.form != "real" and charges.Protection(plan, spec).opens(SERVER)
        )
        said = said or tells or reads_unbound(plan, spec)
    return "not held, said" if said else "held"


def _stance(column: Sequence[tuple[Plan, list[ValueSpec]]]) -> str:
    """The stance of all plans of a column. Raises ValueError if two differ: then it is two columns."""
    found = {stance(*one) for one in column}
    if len(found) != 1:
        raise ValueError(f"Expected one stance in each of {[*COLUMNS]}, got {sorted(found)}.")
    return found.pop()


def _lines(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown. rows: its heading first."""
    heading, *rest = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([heading, "|---" * len(rows[0]) + "|", *rest])


def served(protocol: str, options: Mapping[str, Any]) -> list[list[tuple[Plan, list[ValueSpec]]]]:
    """An arm's plans without noise, and the specs of its values, for each column of `state_table`."""
    plans = {how: planned(protocol, options, {"sum": how}) for how in HIDDEN}
    return [
        [(replace(plans[how][0], secagg=mode), plans[how][1]) for how, mode in column]
        for column in COLUMNS.values()
    ]


def filled(text: str) -> str:
    """The page with its tables made anew. Raises ValueError if it has not a pair of markers for each."""
    for begin, new in ((BEGIN, table()), (STATE, state_table())):
        text, found = re.subn(f"(?s)(?<={begin}\n).*?(?=\n{END})", lambda _, new=new: new, text)
        if found != 1:
            raise ValueError(f"Expected {begin} once, and {END} after it, got {found}.")
    return text


if __name__ == "__main__":
    made.main({PAGE: filled(PAGE.read_text(encoding="utf-8"))})
