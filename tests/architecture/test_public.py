"""The public surface: documents, examples and notebooks import from faces alone, and every name is "
"explained."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import public
import pytest

from securefl.algorithm import Floats
from securefl.core.lazy import RETIRED

ROOT = Path(__file__).parents[2]
PROMISED = ROOT / "tests" / "vectors" / "releases" / "0.2.0.names.txt"
"""The public names of the last release."""
FACES = public.FACES
MODULES = tuple(f"securefl.protocols.{name}" for name in ("averaging", "personal", "fltrust"))
"""Faces that are one module, and no package with a table of names."""
NAMES = [(face, name) for face in FACES for name in public.names(face)]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
PROGRAMS = sorted((ROOT / "examples").rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_PARTS = "parts of a deployment that no face names"
_RUN = "a look inside a run: studies and sweeps have no face"
PRIVATE = {
    "securefl.deployment.messages": _PARTS,
    "securefl.deployment.updates": _PARTS,
    "securefl.deployment.server": _PARTS,
    "securefl.core.release": _PARTS,
    "securefl.storage.journal": _PARTS,
    "securefl.storage.own_record": _PARTS,
    "securefl.deployment": _PARTS,
    "securefl.commands.main": "a program that types commands",
    "securefl.study": _RUN,
    "securefl.study.config": _RUN,
}
"""What documents still import from below a face, and why."""


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Every (module, name) of this package that a program imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "securefl":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if a.name.split(".")[0] == "securefl")


def sources() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for place, block in enumerate(
            re.findall(r"```py(?:thon)?\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
        ):
            yield f"{page.relative_to(ROOT)}, block {place}", block
    for program in PROGRAMS:
        yield str(program.relative_to(ROOT)), program.read_text(encoding="utf-8")
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        lines = "\n".join(code).splitlines()
        yield str(notebook.relative_to(ROOT)), "\n".join(x for x in lines if not x.startswith(("%", "!")))


def outside(source: str) -> list[str]:
    """What a program imports that is not public."""
    found = []
    for module, name in imported(source):
        public_name = module in FACES and (not name or name in public.names(module) or name.startswith("__"))
        whole = f"{module}.{name}" in FACES or (module in FACES and not name)
        if not public_name and not whole and module not in PRIVATE:
            found.append(f"{module}.{name}")
    return found


def whole(source: str) -> bool:
    """Whether a block is a whole program."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def test_documents_import_from_faces_alone() -> None:
    programs = [(where, source) for where, source in sources() if whole(source)]
    assert len(programs) > 30
    assert [(where, bad) for where, source in programs if (bad := outside(source))] == []
    notebooks = {m for where, source in programs if where.endswith("ipynb") for m, _ in imported(source)}
    assert notebooks & set(PRIVATE) == set(), "a notebook uses public names alone"
    used = {module for _, source in programs for module, _ in imported(source)}
    assert set(PRIVATE) - used == set(), "a private module is listed that no document needs"


def test_a_private_name_is_found() -> None:
    assert outside("from securefl.engine.server import Server") == ["securefl.engine.server.Server"]
    assert outside("from securefl.algorithm import CohortQuery\nimport securefl") == []


def test_every_name_is_listed_with_its_signature() -> None:
    """A difference is one that users meet: say it in CHANGELOG.md, then `python tools/public.py --write`."""
    assert public.TEXT.read_text(encoding="utf-8") == public.listing()


def gone(promised: list[str]) -> list[str]:
    """The names of a release that no face has any more."""
    listed = public.TEXT.read_text(encoding="utf-8").splitlines()
    return sorted({*promised}.difference(RETIRED, (re.split(r"[^\w.]", line)[0] for line in listed)))


def test_every_name_of_the_last_release_is_there_or_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leaves a face goes into `core.lazy.RETIRED` for one release."""
    promised = PROMISED.read_text(encoding="utf-8").splitlines()
    assert len(promised) > 250
    assert gone(promised) == []
    assert gone([*promised, "securefl.old"]) == ["securefl.old"]
    monkeypatch.setitem(RETIRED, "securefl.old", "securefl.Plan")
    assert gone([*promised, "securefl.old"]) == []
    for name in RETIRED:
        face, _, own = name.rpartition(".")
        with pytest.warns(DeprecationWarning, match=re.escape(name)):
            public.found(face, own)


def silence(face: str, name: str) -> str:
    """What the docstring of a name lacks."""
    if not (said := public.documented(face, name)):
        own = public.found(face, name)
        return "a docstring" if inspect.isclass(own) or inspect.isfunction(own) else ""
    if ">>> " not in said:
        return "an example"
    return "" if re.search(r"\b[Rr]aise[sd]\b", said) else "a word about errors"


def test_every_name_has_an_example_and_says_what_it_raises() -> None:
    assert [(face, name, lacks) for face, name in NAMES if (lacks := silence(face, name))] == []


_ARRAY = re.compile(r"NDArray|ArrayLike|Floats|Float32s|Integers|Mask|Tensor|DataFrame|ProfileLike")
"""The types of arrays, as signatures write them."""
_TYPED = re.compile(r"\b(float64|float32|int64|uint64|bool) \(")
"""A type and the beginning of a shape, such as float64 (n, d)."""


def undescribed(own: object) -> Iterator[str]:
    """Arrays that come or go without a word under `Args:`, `Attributes:` or `Returns:`."""
    if not (inspect.isclass(own) or inspect.isfunction(own)) or getattr(own, "_is_protocol", False):
        return
    try:
        signature = inspect.signature(own)
    except (TypeError, ValueError):  # an alias of a type
        return
    said = inspect.getdoc(own) or ""
    sections = dict(re.findall(r"^(Args|Attributes|Returns):\n((?:    .*\n?|\n)+)", said, re.M))
    named = re.findall(r"^    ([\w*, ]+):", sections.get("Args", "") + sections.get("Attributes", ""), re.M)
    described = {name.strip(" *") for names in named for name in names.split(",")}
    for name, one in signature.parameters.items():
        if _ARRAY.search(str(one.annotation)) and not name.startswith("_") and name not in described:
            yield name
    if _ARRAY.search(str(signature.return_annotation)) and "Returns" not in sections:
        yield "what it returns"


def members(own: object) -> Iterator[tuple[object, bool]]:
    """The public methods and properties of a class, inherited ones too, and whether it is a property."""
    if not inspect.isclass(own):
        return
    for key, raw in inspect.getmembers_static(own):
        function = getattr(raw, "fget", None) or getattr(raw, "func", None) or getattr(raw, "__func__", raw)
        if inspect.isfunction(function) and key[0] != "_" and package(function) == package(own):
            yield function, isinstance(raw, property | cached_property)


def package(own: object) -> str:
    """The package that defines a class or function, and not a library of its base."""
    return str(own.__module__).partition(".")[0]


def undescribed_members(own: object) -> Iterator[tuple[str, list[str]]]:
    """By qualified name, so that an inherited method is told once. A property says its type and shape."""
    for function, is_property in members(own):
        lacks = [*undescribed(function)]
        if is_property and _TYPED.search(inspect.getdoc(function) or ""):
            lacks = []
        if lacks:
            yield f"{function.__module__}.{function.__qualname__}", lacks  # type: ignore[attr-defined]


def test_arrays_that_come_or_go_are_described() -> None:
    found = {f"{face}.{name}": [*undescribed(public.found(face, name))] for face, name in NAMES}
    assert {name: lacks for name, lacks in found.items() if lacks} == {}


def test_arrays_of_methods_are_described() -> None:
    assert len({function for face, name in NAMES for function, _ in members(public.found(face, name))}) > 200
    found = {
        name: lacks for face, own in NAMES for name, lacks in undescribed_members(public.found(face, own))
    }
    assert found == {}


def test_an_array_without_a_description_is_found() -> None:
    def total(rows: Floats, weights: Floats, count: int) -> Floats:
        """The sum of rows.

        Args:
            rows: float64 (n, d).
        """

    assert [*undescribed(total)] == ["weights", "what it returns"]

    class Rows:
        """Rows of numbers."""

        @property
        def mean(self) -> Floats:
            """Their mean."""

        @cached_property
        def largest(self) -> Floats:
            """The largest, float64 (d,)."""

        @staticmethod
        def of(rows: Floats) -> int:
            """Their number."""

    where = f"{Rows.__module__}.{Rows.__qualname__}"
    assert dict(undescribed_members(Rows)) == {
        f"{where}.mean": ["what it returns"],
        f"{where}.of": ["rows"],
    }


@pytest.mark.docs
@pytest.mark.parametrize("face", FACES)
def test_the_examples_of_a_face_run(
    face: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for name in public.names(face):
        if (face, name) in SLOW or not public.documented(face, name):
            continue
        own = public.found(face, name)
        for example in doctest.DocTestFinder(recurse=False).find(own, name, globs={}):
            runner.run(example)
    assert runner.failures == 0, capsys.readouterr().out


SLOW = {("securefl", name) for name in ("run", "run_sweep", "load", "forecast")} | {
    ("securefl.data", "fetch")
}
"""Examples that train, or fetch: tests/unit/api and tests/e2e run what they say."""


def test_a_face_loads_nothing_before_it_is_asked() -> None:
    slow = ("torch", "numpy", "scipy", "pandas", "matplotlib", "dp_accounting", "tenseal", "flwr")
    packages = [face for face in FACES if face not in MODULES]
    code = f"""
import sys
for face in {packages!r}:
    __import__(face)
    print([(face, name) for name in {slow!r} if name in sys.modules])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(said.split("\n")) == {"[]", ""}


def test_a_type_checker_sees_the_names_that_a_face_has() -> None:
    """A stub is read twice: as Python by a type checker, and a line at a time by `core.lazy`."""
    for module in (importlib.import_module(face) for face in FACES if face not in MODULES):
        stub = ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")).body
        homes = {}
        for node in stub:
            if isinstance(node, ast.AnnAssign):
                assert ast.unparse(node) == "__version__: str"
                continue
            assert isinstance(node, ast.ImportFrom)
            assert [alias.name for alias in node.names] == [alias.asname for alias in node.names]
            homes |= {alias.name: str(node.module) for alias in node.names}
        assert sorted(homes) == module.__all__, module
        assert {*homes, "__doc__", "__file__"} <= set(dir(module)), module
        for name, home in homes.items():
            assert getattr(module, name) is getattr(importlib.import_module(home), name)
        assert not hasattr(module, "nothing"), module


INSIDE = {
    "securefl.training": "fits, features and vectors of models, until training has a face for authors of "
    "systems",
    "securefl.matching.profiles": "FedProf's own question, which no other system asks",
    "securefl.dp.moments": "the grid of a profile's statistic",
    "securefl.data.dataset": "the observer's hold-out",
    "securefl.published.table": "tables of a paper",
    "securefl.commands.telling": "commands of a system",
    "securefl.storage.texts": "commands of a system",
    "securefl.sweep.cells": "commands of a system",
    "securefl.core.lazy": "the table of a face, which `securefl.protocols.fedlog` and others are",
    "securefl.core.logs": "the package's logger",
    "securefl.core.ranges": "ranges of options in their types: a function that raises ValueError does too",
    "securefl.core.sparse": "the code of a model's changes, which go down as clients' sparse values go up",
}
"""What the systems still import from below a face. It is to shrink."""


def below_faces(source: str) -> set[str]:
    """Modules below a face that a system imports."""
    modules = {module for module, _ in imported(source) if not module.startswith("securefl.protocols")}
    return {module for module in modules if module not in FACES}


def allowed(module: str) -> bool:
    return module in INSIDE or any(module.startswith(f"{room}.") for room in INSIDE)


def test_systems_import_faces() -> None:
    used = set()
    for path in sorted((ROOT / "protocols").rglob("*.py")):
        found = below_faces(path.read_text(encoding="utf-8"))
        assert [module for module in found if not allowed(module)] == [], path
        used |= found
    needless = [own for own in INSIDE if not any(u == own or u.startswith(f"{own}.") for u in used)]
    assert needless == [], "nothing is listed that no system needs"


def test_no_name_is_shown_with_a_constructor_that_it_has_not() -> None:
    """Python gives words and protocols the parameters `(*args, **kwargs)`."""
    assert [line for line in public.listing().splitlines() if line.endswith("(*args, **kwargs)")] == []
    assert public.signature("securefl.algorithm", "Unit") == "Unit = Literal['record', 'client']"
