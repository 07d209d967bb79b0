"""The documentation site: it builds without a network, and its reference is the code's, no more, no less."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from e2e import browser
from e2e.named import lies
from handbook import build, commands, keys, names

from securefl.commands.exit_codes import MEANINGS, ExitCode
from securefl.core.errors import ConfigError
from securefl.core.installed import entry_points
from securefl.storage.own_code import Namer
from securefl.study.accounted import allotted
from securefl.study.composition import composition
from securefl.study.config import Study, parse
from securefl.study.world import build as built
from securefl.sweep.cells import has_sweep, parse_sweep

ROOT = Path(__file__).parents[2]
OTHERS = ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")
DOCUMENTS = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in OTHERS)]
FOREIGN = ROOT / "docs" / "coming-from"
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.toml"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build.lay_out(folder)
    build.render(folder)
    return folder / "site"


# The site ------------------------------------------------------------------------------------------------


@pytest.mark.docs
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    loads = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=[\"']?(https?:)?//", re.IGNORECASE
    )
    assert [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))] == []
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert not any(re.search(r"url\(['\"]?(https?:)?//", text) for text in styles)


@pytest.mark.docs
def test_a_browser_without_scripts_reads_every_page(site: Path) -> None:
    """The text of each page is in its HTML, and so are the links to the other pages."""
    for page in site.rglob("*.html"):
        if page.name != "404.html":
            text = page.read_text(encoding="utf-8")
            assert len(re.sub(r"<[^>]*>", "", text.partition("<article")[2])) > 200, page
            assert "reference/" in text or "keys.html" in text, page


@pytest.mark.docs
def test_search_needs_no_server(site: Path) -> None:
    assert "__index" in (site / "search.js").read_text(encoding="utf-8")
    assert "iframe-worker.js" in (site / "index.html").read_text(encoding="utf-8")


@pytest.mark.docs
@pytest.mark.parametrize(
    ("page", "width", "dark"),
    [
        *(("index.html", width, dark) for width in (420, 1280) for dark in (False, True)),
        *(("reference/keys.html", *how) for how in ((420, True), (1280, False))),
        *(("explanation/crafted-models.html", *how) for how in ((420, True), (420, False), (1280, True))),
        *(("threat-model.html", *how) for how in ((420, False), (1280, True))),
        *(("reference/securefl.algorithm.html", *how) for how in ((420, False), (1280, True))),
        *(("notebooks/private_heads.html", *how) for how in ((420, True), (1280, False))),
    ],
)
def test_a_page_is_read_on_a_telephone_and_a_screen_light_and_dark(
    site: Path, page: str, width: int, dark: bool
) -> None:
    seen = browser.look(site / page, width=width, dark=dark)
    # A picture is a file beside the page. A wide table scrolls by itself, and the page does not.
    assert not [one for one in seen.scrolls if "the page needs" in one]
    assert (seen.faint, seen.small, seen.errors) == ([], [], [])
    assert sum(seen.paper) < 200 if dark else sum(seen.paper) == 765


@pytest.mark.docs
@pytest.mark.parametrize(
    ("page", "width", "words"),
    [
        ("how-to/trust.html", 1280, ("A trusted server", "Tutorials", "Reference")),
        ("reference/keys.html", 420, ("max_client_weight", "Coming from", "Commands")),
    ],
)
def test_a_browser_without_scripts_shows_text_and_navigation(
    site: Path, page: str, width: int, words: tuple[str, ...]
) -> None:
    seen = browser.look(site / page, width=width, dark=False, scripts=False)
    assert [word for word in words if word not in seen.text] == []
    assert not [one for one in seen.scrolls if "the page needs" in one]


@pytest.mark.docs
def test_the_search_finds_a_key_from_a_disk(site: Path) -> None:
    seen = browser.look(site / "index.html", width=1280, dark=False, search="dirichlet")
    assert "partition" in seen.text
    assert not [url for url in seen.requests if not url.startswith("file:")]


# The reference -------------------------------------------------------------------------------------------


def headings(page: Path, level: int) -> list[str]:
    found = re.findall(
        rf"<h{level}[^>]*>(.*?)<a class=.headerlink", page.read_text(encoding="utf-8"), re.DOTALL
    )
    return [html.unescape(re.sub(r"<[^>]*>", "", one)).strip() for one in found]


@pytest.mark.docs
def test_every_key_that_exists_is_in_the_reference_and_no_other(site: Path) -> None:
    # Counted from the classes by pydantic's own view of them, and not by the page's.
    expected = [field.name for table in keys.tables() for field in fields(table.kind) if field.init]
    assert headings(site / "reference" / "keys.html", 3) == [*expected, "grid", "list", "panels", "choice"]
    assert len(expected) > 150


@pytest.mark.docs
def test_every_protocol_has_its_keys(site: Path) -> None:
    found = headings(site / "reference" / "keys.html", 2)
    assert {f"[[arm]] {point.name}" for point in entry_points(group="securefl.protocols")} <= {*found}


def test_every_key_has_a_meaning_and_an_example() -> None:
    """The site needs the page, and the default suite builds no site: a new key would break it unseen."""
    page = keys.page()
    for name in ("name", "protocol", "accepts-kept-state", "local"):
        assert f"{{#arm-{name}}}" in page


def test_a_key_without_a_meaning_is_an_error() -> None:
    assert keys.meanings(type(parse(keys.packaged()["demo"]).study))["rounds"]
    with pytest.raises(LookupError, match="example"):
        keys.example_of("study", "nothing")


@pytest.mark.docs
@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_the_studies_behind_the_examples_can_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    here = Namer(trusted=(ROOT,))  # the checkout may be another user's, as in a container
    if has_sweep(text):
        cells = parse_sweep(text, home=path.parent, namer=here).cells
        assert len(cells) > 1
        require_runs(cells[0].study)
    else:
        require_runs(parse(text, home=path.parent, namer=here))


def require_runs(study: Study) -> None:
    """Raises ConfigError where `securefl plan` would refuse the study."""
    seed = study.study.seeds[0]
    records = built(study, seed)
    for arm in study.arms:
        allotted(study, arm, seed, composition(study, arm, records), "")


def test_an_example_that_cannot_run_is_refused() -> None:
    text = (ROOT / "docs" / "examples" / "hidden_sums.toml").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="honest signers"):
        require_runs(parse(text.replace("clients = 48", "clients = 24").replace("_size = 24", "_size = 12")))


def test_an_example_with_a_key_that_does_not_exist_is_refused() -> None:
    text = EXAMPLES[0].read_text(encoding="utf-8").replace("[local]", "[local]\nlearning_rat = 1.0", 1)
    with pytest.raises(ConfigError, match="learning_rate"):
        parse(text, home=EXAMPLES[0].parent)


@pytest.mark.docs
def test_every_command_that_exists_is_in_the_reference_and_no_other(site: Path) -> None:
    found = headings(site / "reference" / "commands.html", 2)
    assert found == [own.name for own in commands.commands()]
    top = {one.split()[1] for one in found}
    assert top == {point.name for point in entry_points(group="securefl.commands")}


def test_every_command_has_an_example_and_every_option_a_meaning() -> None:
    assert [own.name for own in commands.commands() if not own.command.epilog] == []
    bare = [
        (own.name, one.name)
        for own in commands.commands()
        for one in own.command.params
        if one.param_type_name == "option" and not getattr(one, "help", "")
    ]
    assert bare == []


@pytest.mark.docs
def test_every_public_name_is_in_the_reference_and_no_other(site: Path) -> None:
    listed = (ROOT / "tests" / "architecture" / "public.txt").read_text(encoding="utf-8").splitlines()
    for face in names.FACES:
        found = headings(site / "reference" / f"{face}.html", 2)
        assert found == sorted(names.names(face))
        assert all(any(line.startswith(f"{face}.{one}") for line in listed) for one in found)


def _exits(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
            "SystemExit",
            "Exit",
            "exit",
        ):
            yield node


@pytest.mark.docs
def test_every_exit_code_that_exists_is_in_the_reference(site: Path) -> None:
    rows = re.findall(
        r"<td><code>(\d+)</code></td>", (site / "reference" / "exit-codes.html").read_text("utf-8")
    )
    assert [int(row) for row in rows] == [code.value for code in ExitCode]
    assert {*MEANINGS} == {*ExitCode}
    commands_of = [
        *(ROOT / "securefl").glob("*/commands/**/*.py"),
        *(ROOT / "securefl" / "commands").rglob("*.py"),
    ]
    for path in commands_of:
        for call in _exits(ast.parse(path.read_text(encoding="utf-8"))):
            bare = [one for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, int)]
            assert not bare, f"{path}: an exit code without a name"


# Pages that lie ------------------------------------------------------------------------------------------


def test_what_a_page_names_exists() -> None:
    pages = [path for path in DOCUMENTS if FOREIGN not in path.parents]
    found = {name(path): lies(path.read_text(encoding="utf-8")) for path in pages}
    assert {page: said for page, said in found.items() if said} == {}


def test_a_lie_in_prose_is_found() -> None:
    lies_of_all_kinds = [
        "`securefl runn STUDY`",
        "`securefl plan STUDY --jsn`",
        "`securefl sweep fedlog_tradeof`",
        "`python benchmarks/nothing.py`",
        "`securefl party serv P`",
        "`make demos`",
        "`--wrokers`",
        "`securefl.masked_summ`",
        "`tests/unit/test_nothing.py`",
        "`tests/e2e/test_site.py::test_nothing`",
        "`[privcy]`",
        "`[privacy] bugdet`",
        "`min_cohort = 3`",
        "`min_cohort_sise`",
        "`SecureAgregator`",
        '`"delt-pads"`',
        "`RUN/metrcs.csv`",
        "exit code 6",
    ]
    told = [lies(f"Some words, and {lie} among them.") for lie in lies_of_all_kinds]
    assert told == [[lie.strip("`")] for lie in lies_of_all_kinds]


PARTIES = ("server", "client", "key holder", "others", "observer", "evaluator", "stranger")
PARTIES += ("owner", "process", "cluster", "another user")


def attacks() -> list[list[str]]:
    """The rows of the threat model's attacks: party, attempt, what is learnt, what stops it, test."""
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    section = page.partition("\n## Attacks\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").strip().split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "party"]


def test_every_attack_names_its_party_and_the_test_that_plays_it() -> None:
    rows = attacks()
    assert len(rows) > 140
    assert {len(row) for row in rows} == {5}
    assert {row[0].split(", with")[0] for row in rows} == {*PARTIES}
    assert [row for row in rows if not all(row)] == []
    # What no test can play, the page says in a word. `lies` holds each name to its file.
    assert [row for row in rows if not re.fullmatch(r"`tests/[\w/]+\.py::test_\w+`", row[4])] == [
        row for row in rows if row[4].startswith("none: ") and "**not held**" in row[3]
    ]
    # Two attacks under one test would be one.
    named = [row[4] for row in rows if row[4].startswith("`")]
    assert len({*named}) == len(named)


@pytest.mark.docs
@pytest.mark.parametrize(
    "lie", ["[x](other.md#data-sorce)", "[x](nothing.md)", "![x](nothing.png)", "nav", ""]
)
def test_a_link_to_nothing_stops_the_build(lie: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(
        f"# Home\n\n[a](other.md#data-source) {lie}\n", encoding="utf-8"
    )
    (tmp_path / "docs" / "other.md").write_text("# Other\n\n## Data source\n", encoding="utf-8")
    nav = '[{ "Home" = "index.md" }, { "More" = [{ "x" = "nothing.md" }] }]' if lie == "nav" else "[]"
    rules = f'[project]\nsite_name = "small"\nnav = {nav}\n'
    (tmp_path / "zensical.toml").write_text(rules, encoding="utf-8")
    if lie:
        with pytest.raises(SystemExit) as stopped:
            build.render(tmp_path)
        assert stopped.value.code
    else:
        build.render(tmp_path)
