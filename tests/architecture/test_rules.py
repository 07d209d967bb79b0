"""Rules a guarantee hangs on, read off the source: no test run can miss a branch that breaks them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import grimp
from support.sources import nodes, sources, tree

from securefl.core.installed import entry_points

ROOT = Path(__file__).parents[2]
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
SAFE = ("weights_only", "allow_pickle")
GLOBAL_RANDOM = {"seed", "rand", "randn", "random", "normal", "uniform", "choice", "shuffle", "permutation"}


def imported(source: str) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def calls(source: str) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes(source):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def dotted(node: ast.expr) -> str:
    """The node's text. For a name or one behind a dot, `ast.unparse` takes ten times as long."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
    return ast.unparse(node)


# primitives, what splits records by a key, and the modules that write secret files
HOLDS_SECRETS = (
    "securefl/he/",
    "securefl/linear/",
    "securefl/secagg/",
    "securefl/core/signing.py",
    "securefl/core/entropy.py",
    "securefl/sums/two_server/pads.py",
    "securefl/dp/noise.py",
    "securefl/matching/clients.py",
    "securefl/matching/evaluator.py",
    "securefl/matching/key_holder.py",
    "securefl/deployment/keys.py",
    "securefl/study/split_key.py",
    "securefl/data/sides.py",
)

# Each text stays in one process or is of plain values: a new name of a field changes nothing on disk.
REPR = {
    "securefl/core/arguments.py": "for people",
    "securefl/core/text_safety.py": "one character, for people",
    "securefl/matching/admission.py": "for people",
    "securefl/storage/inputs.py": "a path, for people",
    "securefl/matching/options.py": "for people",
    "securefl/matching/sealed.py": "for people",
    "securefl/published/comparison.py": "the digits of a number",
    "securefl/api/running.py": "for people",
    "securefl/training/reached_code.py": "of Python's own numbers and texts alone",
    "securefl/storage/database.py": "the digits of a number",
    "securefl/training/networks.py": "how torch prints a brought model, whose fields are not ours",
    "securefl/deployment/folder.py": "for people",
    "securefl/sweep/check.py": "groups cells in one process",
    "securefl/sweep/page.py": "groups cells in one process",
    "securefl/sweep/cells.py": "compares cells in one process",
}


def violations(source: str, where: str) -> list[str]:
    """What a file does that no file may do; `where` is its path inside the repository."""
    found = []
    for module in imported(source):
        top = module.split(".")[0]
        if top in FORBIDDEN_MODULES or (module == "random" and where.startswith("securefl/training")):
            found.append(f"imports {module}")
        if top == "tenseal" and where != "securefl/he/ring.py":
            found.append("imports tenseal outside securefl/he/ring.py")
        if top == "opacus" and where != "securefl/training/dpsgd.py":
            found.append("imports opacus")
        if top == "flwr" and not where.startswith("securefl/flower/"):
            found.append("imports flwr outside securefl/flower")
        # Ray pickles: one module of it, of which nothing that talks to another party knows.
        if top == "ray" and where != "securefl/sweep/on_ray.py":
            found.append("imports ray outside securefl/sweep/on_ray.py")
        if module.startswith("securefl.protocols") and where.startswith("securefl"):
            found.append("a building block imports a system")
        if top == "click" and not where.startswith(("securefl/commands/", "protocols/commands/")):
            found.append("imports click outside the commands")
    for called, node in calls(source):
        keywords = {k.arg: dotted(k.value) for k in node.keywords if k.arg in SAFE}
        last = called.split(".")[-1]
        if called in FORBIDDEN_CALLS:
            found.append(f"calls {called}")
        if called == "torch.load" and keywords.get("weights_only") != "True":
            found.append("torch.load without weights_only=True")
        if called in ("np.load", "numpy.load") and keywords.get("allow_pickle") != "False":
            found.append("np.load without allow_pickle=False")
        if called.startswith(("np.random.", "numpy.random.", "random.")) and last in GLOBAL_RANDOM:
            found.append(f"global randomness: {called}")
        if last in ("repr", "asdict") and where not in REPR:
            found.append(f"{last}, of which no digest and no file is made")
        if called == "torch.manual_seed":
            found.append("torch.manual_seed")
        if last == "Permit" and where != "securefl/accounting/ledger.py":
            found.append("makes a Permit outside the ledger")
        if last == "reveal" and not (node.args or node.keywords) and not where.startswith(HOLDS_SECRETS):
            found.append("reveals a secret key where none is used")
    return found


def test_every_file_keeps_the_rules() -> None:
    assert [(where, bad) for where, source in sources().items() if (bad := violations(source, where))] == []


def test_the_rules_can_be_broken() -> None:
    broken = (
        "import pickle",
        "from joblib import load",
        "import tenseal as ts",
        "import numpy as np\nnp.load('x')",
        "import torch\ntorch.load('x')",
        "import numpy as np\nnp.random.normal(0, 1)",
        "import torch\ntorch.manual_seed(1)",
        "eval('1')",
        "Permit(frozenset(), issuer=None)",
        "key.reveal()",
        "import opacus",
        "sha256(repr(plan).encode())",
        "json.dumps(dataclasses.asdict(plan))",
        "import flwr",
        "import ray",
        "from ray import cloudpickle",
        "import click",
        "import securefl.protocols.fedavg",
    )
    assert [source for source in broken if not violations(source, "securefl/elsewhere.py")] == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        where for where, text in sources().items() if text.strip() and not ast.get_docstring(tree(text))
    ]
    assert silent == [], "modules without a docstring"


def test_arrows_run_downward_only() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 kept, 0 broken" in done.stdout


PARTIES = ("securefl.deployment", "securefl.flower", "securefl.engine", "securefl.sums", "securefl.secagg")


def test_no_message_of_a_party_comes_near_the_cluster() -> None:
    """Its workers unpickle what they get. Only a sweep knows it."""
    graph = grimp.build_graph("securefl", cache_dir=None)
    cluster = "securefl.sweep.on_ray"
    assert graph.find_modules_that_directly_import(cluster) == {"securefl.sweep.session"}
    for room in PARTIES:
        direct = graph.find_modules_directly_imported_by
        modules = [module for module in graph.modules if module.startswith(f"{room}.")]
        assert modules
        assert not [module for module in modules if cluster in direct(module)], room


def commands() -> Iterator[tuple[str, click.Command]]:
    for point in entry_points(group="securefl.commands"):
        command: click.Command = point.load()
        yield point.name, command
        if isinstance(command, click.Group):
            yield from ((f"{point.name} {name}", sub) for name, sub in command.commands.items())


def test_every_command_helps_with_an_example() -> None:
    silent = [
        name
        for name, command in commands()
        if not command.help
        or not re.search(rf"Examples?:\s+securefl {name.split()[0]}", command.epilog or "")
    ]
    assert silent == []


def circle(imports: Mapping[str, set[str]]) -> set[str]:
    """The modules that stand in a circle of imports, or between two."""
    left = dict(imports)
    while done := [module for module, wanted in left.items() if not wanted & set(left)]:
        for module in done:
            del left[module]
    while spared := [module for module in left if not any(module in wanted for wanted in left.values())]:
        for module in spared:
            del left[module]
    return set(left)


def test_no_module_imports_itself_in_a_circle() -> None:
    """Inside a room too, and for the type checker alone too."""
    graph = grimp.build_graph("securefl", cache_dir=None)
    found = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert sum(map(len, found.values())) > 1000, "the imports were not found"
    assert circle(found) == set()


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"b", "c"}
