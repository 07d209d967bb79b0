"""Every plan that ships, against a server and a client that take the worst that the plan lets through.

Plans are parsed from the files as they ship: packaged studies with all cells of their sweeps, pages, examples
and notebooks. The server chooses the size of the cohort, the weights, who falls silent and who colludes. It
then guesses one client's value from the sum, linearly, over draws of equal spread.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from support.every import every

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.algorithm.weighing import Weights, require_allowed
from securefl.core.errors import ConfigError
from securefl.flower import AppTerms
from securefl.study.composition import composition
from securefl.study.config import Study, parse
from securefl.study.packaged import packaged, text_of
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.sweep.cells import has_sweep, parse_sweep

ROOT = Path(__file__).parents[2]
DRAWS, ENTRIES = 20, 400
"""How often values are drawn, and how many entries each has."""
ROOM = 0.95
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = [*sorted((ROOT / "examples").rglob("*.py"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


# What ships -------------------------------------------------------------------------------------


def studies() -> Iterator[tuple[str, str]]:
    """Every text of a study that ships, by where it stands."""
    for name in packaged():
        yield name, text_of(name)
    for path in (ROOT / "examples").rglob("*.toml"):
        if "[privacy]" in (text := path.read_text(encoding="utf-8")):
            yield str(path.relative_to(ROOT)), text
    for where, source in sources():
        for found in re.findall(r'"""\n(\[study\].*?)"""', source, re.S):
            yield where, found.replace("epsilon = EPSILON", "epsilon = 1.0")
    for page in PAGES:
        for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if kind == "toml" and "[privacy]" in block and "[study]" in block:
                yield page.name, block


def sources() -> Iterator[tuple[str, str]]:
    """Every piece of Python that ships beside the package, by where it stands."""
    for path in CODE:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for page in PAGES:
        blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
        yield page.name, "\n".join(block for kind, block in blocks if kind in ("py", "python"))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        yield path.name, "\n".join(line for line in "\n".join(code).splitlines() if line[:1] not in "%!")


def on_digits(text: str) -> str:
    """The same study on data that every machine has: what is read are its sections on privacy and arms."""
    table = tomllib.loads(text)
    own = table["data"]
    # The clients of a table are the names in its client column, or its records say it.
    named = own.get("columns", {}).get(own.get("client_column"), {}).get("categories", ())
    clients = own.get("clients") or len(named) or table["privacy"].get("min_cohort_size", 5)
    table["data"] = {"source": "digits", "clients": clients, "partition": {"kind": "iid"}}
    if ":" in table["model"]["kind"]:
        table["model"] = {"kind": "mlp", "hidden": [8]}
    table.pop("corruption", None)
    return tomli_w.dumps(table)


def cells(text: str) -> Iterator[Study]:
    if has_sweep(text):
        # Cells that differ in their training alone have one plan.
        plans = {
            repr((own.privacy, own.arms, own.data.clients, own.study.rounds)): own.text
            for own in (cell.study for cell in parse_sweep(text).cells)
        }
        yield from (parse(on_digits(own)) for own in plans.values())
    else:
        yield parse(on_digits(text))


HIDDEN = re.compile(r"sum\W+(masked|two-server|ckks)")


@cache
def places() -> Mapping[str, tuple[list[str], list[str]]]:
    """By where they stand, the texts of studies and the Python in which a sum is hidden."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for number, texts in enumerate((studies(), sources())):
        for where, text in texts:
            if HIDDEN.search(text):
                found.setdefault(where, ([], []))[number].append(text)
    return found


def hidden_sums(where: str) -> Iterator[tuple[Plan, ValueSpec]]:
    """The hidden sums of the plans that stand there, each once."""
    texts, code = places()[where]
    worlds: dict[str, World] = {}
    seen = set()
    for study in (study for text in texts for study in cells(text)):
        for arm in study.arms:
            key = (arm.name, study.data.clients, repr(study.privacy))
            if study.privacy.sum != "clear" and key not in seen:
                seen.add(key)
                plan, spec = composed(study, arm.name, worlds)
                yield from ((plan, one) for one in spec if one.reduction == "sum")
    for source in code:
        yield from python_plans(source)


def composed(study: Study, name: str, worlds: dict[str, World]) -> tuple[Plan, Sequence[ValueSpec]]:
    key = repr((study.data, study.model))
    if key not in worlds:
        worlds[key] = build(study, study.study.seeds[0])
    arm = next(arm for arm in study.arms if arm.name == name)
    algorithm, plan = composition(study, arm, worlds[key])
    return plan, [contribution.spec for contribution in algorithm.contributions]


def python_plans(source: str) -> Iterator[tuple[Plan, ValueSpec]]:
    """The hidden sums of each Plan(...) in a piece of Python, by its literal words; noise is left out."""
    tree = ast.parse(source)
    known = dict(literals(tree))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if getattr(call.func, "id", getattr(call.func, "attr", "")) != "Plan":
            continue
        words: dict[str, Any] = {}
        for keyword in call.keywords:
            value = literal(keyword.value, known)
            words |= value or {} if keyword.arg is None else {keyword.arg: value}
        taken = {k: v for k, v in words.items() if v is not None and not k.startswith(("noise", "scores"))}
        plan = Plan(**{"delta": 1e-5, "max_rounds": 1, **taken})
        if plan.hidden:
            for name in plan.weights or ("step",):
                yield plan, ValueSpec(name=name, reduction="sum", reveals="it")


def literals(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    """What names are set to, where that is a literal."""
    known: dict[str, Any] = {}
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Assign)):
        target = node.targets[0]
        pairs = (
            zip(target.elts, node.value.elts, strict=False)
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            else [(target, node.value)]
        )
        for name, value in pairs:
            if isinstance(name, ast.Name) and (found := literal(value, known)) is not None:
                known[name.id] = found
                yield name.id, found


def literal(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of an expression of literals and known names; None for any other."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {literal(k, known): literal(v, known) for k, v in pairs if k is not None}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return None


# The attack -------------------------------------------------------------------------------------


def orders(plan: Plan, spec: ValueSpec) -> Iterator[tuple[Weights, list[float]]]:
    """Orders that clients take, and the weights with which each client's value then stands in the sum."""
    assert plan.min_cohort_size is not None
    assert plan.max_cohort_size is not None
    sizes = {plan.min_cohort_size, plan.max_cohort_size, plan._thinnest()}
    sizes |= set(range(plan.min_cohort_size, min(plan.max_cohort_size, plan.min_cohort_size + 30) + 1))
    for size in sorted(sizes):
        for weights in [Weights.usual(plan, spec, size), *skewed(plan, spec, size)]:
            try:
                require_allowed(plan, [spec], weights)
            except ConfigError:
                continue
            if plan.weights.get(spec.name) == "counts":
                least, largest = plan.counts
                yield weights, [float(largest), *[float(least)] * (size - 1)]
            else:
                yield weights, [float(draws) for draws in weights.draws]


def skewed(plan: Plan, spec: ValueSpec, size: int) -> Iterator[Weights]:
    """One client has some draws, another that falls silent or colludes the others, and the rest one each."""
    if spec.weighs != "draws" or plan.draws is None:
        return
    gone = size - 1 - hiding(plan, size)
    for own in range(1, plan.draws - size + 2):
        left = plan.draws - own - (size - 1)
        if left and not gone:
            continue
        yield Weights((own, 1 + left, *(1,) * (size - 2)), whole=plan.draws)


def hiding(plan: Plan, size: int) -> int:
    """How many others hide a client: not who is lost or colludes, and not one more that sees the total."""
    return plan.survivors(size) - plan.colluding(size) - 2


@cache
def guessed(weights: tuple[float, ...], beside: int) -> float:
    """The error of the best linear guess of the heaviest client's values, in spreads, by regression.

    The server has the heaviest others fall silent or collude, which leaves the lightest beside the victim.
    """
    own, *others = sorted(weights, reverse=True)
    values = np.random.default_rng(3).normal(size=(1 + beside, DRAWS * ENTRIES))
    seen = np.array([own, *others[len(others) - beside :]]) @ values
    slope = (seen @ values[0]) / (seen @ seen)
    return float(np.sqrt(((values[0] - slope * seen) ** 2).mean() / (values[0] ** 2).mean()))


@every("where", sorted(places()))
def test_no_shipped_plan_lets_a_server_guess_one_client(where: str) -> None:
    require_no_guess(where, hidden_sums(where))


@every(
    "where",
    [
        "securefl/flower/noised.toml",
        "securefl/flower/without-noise.toml",
        "examples/flower_secure_grid/securefl.toml",
    ],
)
def test_no_shipped_terms_of_an_app_let_a_server_guess_one_client(where: str) -> None:
    terms = AppTerms.read(ROOT / where)
    assert terms.plan.hidden
    require_no_guess(where, ((terms.plan, spec) for spec in terms.updates.spec(terms.plan).values()))


def require_no_guess(where: str, sums: Iterable[tuple[Plan, ValueSpec]]) -> None:
    for plan, spec in sums:
        assert plan.max_client_weight is not None
        assert plan.max_client_weight <= 0.5
        found = [guessed(tuple(own), hiding(plan, len(own))) for _, own in orders(plan, spec)]
        assert found, f"{where}: clients take no order for {spec.name!r}"
        assert min(found) >= ROOM * np.sqrt(1 - plan.max_client_weight), (where, spec.name)
        assert min(found) >= ROOM * plan.guess_error(spec), "what card and plan print"


def test_the_attack_finds_what_the_former_plans_let_through() -> None:
    """Weights that the rule would refuse tell a value, by the same guess."""
    assert guessed((2.0**40, *[1.0] * 9), 9) < 1e-6
    assert guessed((6.0, *[1.0] * 6), 6) < 0.4, "half of the draws beside six small ones"
    assert guessed((1.0,) * 3, 2) == pytest.approx(np.sqrt(2 / 3), abs=0.02)


def test_all_places_with_hidden_sums_are_known() -> None:
    assert {"demo", "heads_digits", "heads", "heads_twin", "fedlog_tradeoff"} <= set(places())
    assert "examples/flower/study.toml" in places()
    assert {"own-loop.md", "own-data.md", "python.md", "flower-strategies.md"} <= set(places())
    assert {"foreign_loop.ipynb", "private_heads.ipynb"} <= set(places())
