"""Where noise goes is known in `mechanisms` alone: no other module has its words, or asks which one it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from support.sources import nodes, sources

from securefl.mechanisms.registry import OURS

HOME = "securefl/mechanisms/"
PARTY = "the name of a party"
# What these words mean where they do not mean noise.
OTHERWISE = {
    **{
        ("local", f"protocols/{file}.py"): "the arm's own settings of local training, in a preset or a table"
        for file in ("adds/part", "cs_fl", "fedcor/options", "feddbe", "pfedme", "tables/fedlog")
    },
    ("local", "securefl/study/config.py"): "the section of local training",
    ("local", "securefl/sweep/on_ray.py"): "Ray's word for a cluster of this machine alone",
    ("local", "securefl/training/models.py"): "the word of [model] for statistics that clients keep",
    ("key-holder", "securefl/accounting/events.py"): PARTY,
    ("key-holder", "securefl/engine/privacy_card.py"): PARTY,
    ("key-holder", "securefl/commands/keygen.py"): "whose keys",
    ("key-holder", "securefl/commands/ledger.py"): PARTY,
    ("key-holder", "securefl/commands/party.py"): PARTY,
    ("key-holder", "securefl/core/release.py"): PARTY,
    ("key-holder", "securefl/core/wire/kinds.py"): "who sends a message",
    ("key-holder", "securefl/core/messages.py"): "who sends a message",
    ("key-holder", "securefl/deployment/plan_file.py"): PARTY,
    ("key-holder", "securefl/study/privacy.py"): PARTY,
    ("key-holder", "securefl/sums/two_server/messages.py"): "who sends a message",
}
ASKS_FOR_ONE = {"securefl/api/summing.py"}
"""A module that makes plans of one mechanism, and so imports it for its word."""


def texts(source: str) -> Iterator[str]:
    """The words of a text in code. Docstrings are longer."""
    yield from (node.value for node in nodes(source) if isinstance(node, ast.Constant) if node.value in OURS)


def names_noise(node: ast.AST) -> bool:
    named = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return named == "noise"


def holds_text(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node))


def violations(source: str, where: str) -> list[str]:
    """What of noise a module knows that it must not; `where` is its path inside the repository."""
    if where.startswith(HOME):
        return []
    found = [f"the word {word!r}" for word in texts(source) if (word, where) not in OTHERWISE]
    for node in nodes(source):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(names_noise, sides)) and any(map(holds_text, sides)):
                found.append("compares noise with a word")
        if isinstance(node, ast.Match) and names_noise(node.subject):
            found.append("matches noise")
        if isinstance(node, ast.keyword) and node.arg == "noise" and holds_text(node.value):
            found.append("asks for noise by a word")
        if isinstance(node, ast.Subscript) and names_noise(node.slice):
            found.append("looks something up by noise")
        if isinstance(node, ast.ImportFrom) and where not in ASKS_FOR_ONE:
            classes = {f"{own.__module__}.{own.__name__}" for own in OURS.values()}
            if classes & {f"{node.module}.{alias.name}" for alias in node.names}:
                found.append("imports one mechanism")
    return found


def test_no_other_module_knows_where_noise_goes() -> None:
    assert [(where, bad) for where, source in sources().items() if (bad := violations(source, where))] == []


def test_the_rule_can_be_broken() -> None:
    broken = (
        'if plan.noise == "distributed":\n    pass',
        'if plan.noise == "none":\n    pass',
        'found = noise in ("own", "other")',
        'x = "other" != self.noise',
        'match place:\n    case "central":\n        pass',
        "match plan.noise:\n    case word:\n        pass",
        'WORDS = {"local": 1}',
        'Plan(noise="none")',
        'Plan(noise="key-holder" if shared else other)',
        "x = TABLE[plan.noise]",
        "from securefl.mechanisms.distributed import Distributed",
        "from securefl.mechanisms.mechanism import KeyHolder, Mechanism",
    )
    assert [source for source in broken if not violations(source, "securefl/elsewhere.py")] == []
    assert [source for source in broken if violations(source, f"{HOME}mine.py")] == []


def test_the_rule_lets_prose_and_objects_be() -> None:
    allowed = (
        '"""Central noise: `noise = "central"`."""',
        "if plan.noise == NO_NOISE:\n    pass",
        "Plan(noise=self.noise)",
        'message = f"Expected noise among {words}, got {plan.noise!r}."',
        "from securefl.mechanisms import Protection",
    )
    assert [source for source in allowed if violations(source, "securefl/elsewhere.py")] == []


def test_every_other_meaning_is_still_there() -> None:
    """A place of the list that has the word no longer would let it come back with another meaning."""
    there = {(word, where) for where, source in sources().items() for word in texts(source)}
    assert there >= set(OTHERWISE)
