"""Each rule has one home, and each module one idea: twins drift apart, and long modules hide things."""

from __future__ import annotations

import re

import house
import longest
import pytest

TEXTS = longest.sources()
HOUSE = house.house_of(TEXTS)

HOMES = {
    "how many clients a share is": (r"Fraction\(str\(", "securefl/core/cohort.py"),
    "what is near a budget": (r"\* NEAR\b", "securefl/accounting/composition.py"),
    "the bisection for rounds left": (r"\(low \+ high\) // 2", "securefl/accounting/budget.py"),
    "why epsilon is infinite": (r"so it is not noised", "securefl/mechanisms/charges.py"),
    "opening SQLite": (r"sqlite3\.connect\(", "securefl/storage/database.py"),
    "an infinite epsilon as text": ("∞", "securefl/accounting/figures.py"),
    "an infinite number in JSON": (r"\bstr\(float\(|return \"-?inf\"", "securefl/accounting/figures.py"),
    "names of presets": (r"\"emnist_v1\"", "securefl/study/cost.py"),
}


@pytest.mark.parametrize(("rule", "home"), HOMES.values(), ids=list(HOMES))
def test_a_rule_stands_in_one_module(rule: str, home: str) -> None:
    assert [path for path, text in TEXTS.items() if re.search(rule, text)] == [home]


def test_no_module_is_long() -> None:
    assert len(TEXTS) > 150, "the modules were not found"
    assert longest.long_modules(TEXTS) == []


def test_a_long_module_is_found() -> None:
    assert longest.long_modules({"a.py": "x\n" * 601, "b.py": "x\n" * 600}) == [(601, "a.py")]


# A module that one other of its folder reads is half an idea, unless a reader wants it by itself.
ALONE = {
    "securefl.accounting.filed": "what a ledger reads of its file; the ledger alone makes permits",
    "securefl.commands.story": "a match without other parties: it makes profiles, and `match` has none",
    "securefl.commands.sweep": "a word of the command line; `plan` asks it how a sweep is found",
    "securefl.data.parse": "strict readers of bytes, which know no data set",
    "securefl.data.shakespeare": "how a play becomes records and roles",
    "securefl.dp.ziggurat": "a sampler with its proof; it never reads a key, and `noise` does",
    "securefl.deployment.limits": "how places and memory are shared, tested without a socket",
    "securefl.deployment.transport": "waves of turns, apart from entering, booking and attendance",
    "securefl.engine.party.contributing": "how the charges of a wave are reserved, apart from the machine",
    "securefl.linear.checked_ckks": "one scheme with its sides, beside those that `registry` names",
    "securefl.linear.isolation": "one scheme with its sides, beside those that `registry` names",
    "securefl.linear.padded": "one scheme with its sides, beside those that `registry` names",
    "securefl.matching.readers": "the key holder's ways to read a score, beside the evaluator's `matchers`",
    "securefl.mechanisms.central": "one mechanism with its proof",
    "securefl.mechanisms.key_holder": "one mechanism with its proof",
    "securefl.mechanisms.local": "one mechanism with its proof",
    "securefl.mechanisms.outside": "what a mechanism of another distribution is held to",
    "securefl.protocols.fedlog.bodies": "FedLog's bodies and FedLog-C's penalty, apart from the head",
    "securefl.secagg.graph": "who masks with whom, as SPEC.md draws it, apart from what is agreed",
    "securefl.secagg.rings": "probabilities that SPEC.md proves; `policy` chooses parameters by them",
    "securefl.secagg.quorum": "one check with its bound, as SPEC.md proves it",
    "securefl.study.alarms": "warnings about a finished run, apart from the tables that `results` makes",
    "securefl.report.margins": "it imports matplotlib, which `style` imports where a figure is made",
    "securefl.sums.encrypted.key_holder": "one party's machine",
    "securefl.sums.encrypted.parts": "arithmetic on ciphertexts, tested without the machines",
    "securefl.sums.encrypted.server": "one party's machine",
    "securefl.sums.encrypted.terms": "public terms and coding without a key, which every party computes",
    "securefl.sums.masked": "one scheme with its sides, beside those that `registry` names",
    "securefl.sums.two_server.client": "one party's machine",
    "securefl.sums.two_server.key_holder": "one party's machine",
    "securefl.sums.two_server.server": "one party's machine",
    "securefl.study.spent": "what data holders spent by round, from the public account alone",
    "securefl.sweep.on_cluster": "lanes of cells on a cluster; `session` plays cells on one machine",
    "securefl.training.alone": "what vmap isolates; `isolation` chooses the way, and is as long again",
    "securefl.training.canaries": "one attack, which needs Opacus: `audits` imports it when it is used",
    "securefl.training.kinks": "one attack, which needs Opacus: `audits` imports it when it is used",
    "securefl.study.lying": "what a simulation's liars send, beside the parties that it gives to the engine",
    "securefl.training.model_card": "a stranger's card is parsed here, apart from the model of it",
    "securefl.training.stack": "layers as mathematics, without fits or privacy; `cohorts` is as long again",
}
FLOORS = {"study": 8, "training": 8, "sweep": 8}


def test_a_module_with_one_reader_has_a_reason() -> None:
    assert sorted(HOUSE.alone()) == sorted(ALONE)


@pytest.mark.parametrize(("room", "most"), FLOORS.items())
def test_a_room_has_few_floors_inside(room: str, most: int) -> None:
    assert HOUSE.inside(room) <= most


def test_the_house_reads_imports() -> None:
    texts = {
        "securefl/a/__init__.py": "",
        "securefl/a/low.py": "",
        "securefl/a/high.py": "from securefl.a.low import x\nfrom securefl.b import y",
        "securefl/b.py": "import securefl.c",
        "securefl/c.py": "",
        "protocols/d.py": "from securefl.a import high",
    }
    found = house.house_of(texts)
    assert found.floors == [["c"], ["b"], ["a"], ["protocols"]]
    assert found.inside("a") == 2
    assert found.alone() == {"securefl.a.low": "securefl.a.high", "securefl.c": "securefl.b"}


def test_a_circle_of_rooms_is_refused() -> None:
    with pytest.raises(ValueError, match="circle of imports"):
        house.levels({"a": {"b"}, "b": {"a"}})
