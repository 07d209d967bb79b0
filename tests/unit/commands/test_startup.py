"""Help comes at once: what a command works with is loaded where it is used."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import get_args

import click
import pytest
from click.testing import CliRunner

from securefl.commands.ledger import show
from securefl.commands.main import Commands, cli
from securefl.core.installed import entry_points
from securefl.core.lazy import without_full_collections
from securefl.core.release import PARTIES

SLOW = ("torch", "matplotlib", "dp_accounting", "scipy", "pandas", "tenseal", "sklearn", "opacus", "jinja2")
EVERY_HELP = """
import sys
import click
from securefl.commands.main import Commands, cli

with click.Context(cli, info_name="securefl") as context:
    cli.get_help(context)
    for name in Commands().list_commands(context):
        command = cli.get_command(context, name)
        with click.Context(command, info_name=name) as inner:
            command.get_help(inner)
print(*(name for name in %r if name in sys.modules))
"""


def test_no_page_of_help_loads_what_takes_seconds() -> None:
    found = subprocess.run(
        [sys.executable, "-c", EVERY_HELP % (SLOW,)], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []


COMMANDS = """
import sys
from securefl.commands.main import cli

for words in %r:
    cli(words.split(), standalone_mode=False)
print("loaded", *(name for name in %r if name in sys.modules))
"""
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def loaded(code: str, folder: Path) -> set[str]:
    """The slow libraries that a new interpreter has loaded when the code has run."""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    return set(found.stdout.split("\n")[-2].split()[1:])


@pytest.mark.parametrize(
    ("words", "may"),
    [
        (["studies", "studies demo", "data list"], set()),
        # A key holder's key is made by what keeps its ledger.
        (["keygen --role key-holder --out K"], {"tenseal", "dp_accounting", "scipy"}),
        (["calibrate --epsilon 1 --delta 1e-5 --sensitivity 1"], {"dp_accounting", "scipy"}),
        # pandas reads the table, and the study's own net.py loads scikit-learn. No picture is drawn.
        (["plan own_table.toml"], {"torch", "dp_accounting", "scipy", "tenseal", "pandas", "sklearn"}),
    ],
)
def test_a_command_loads_only_what_it_needs(words: list[str], may: set[str], tmp_path: Path) -> None:
    for name in ("own_table.toml", "patients.csv", "net.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    assert loaded(COMMANDS % (words, SLOW), tmp_path) <= may


def test_python_waits_for_no_picture_before_its_study_begins(tmp_path: Path) -> None:
    code = (
        "import sys, securefl; securefl.run, securefl.forecast; "
        f"print('loaded', *(name for name in {SLOW!r} if name in sys.modules))"
    )
    assert loaded(code, tmp_path) <= {"torch", "pandas", "dp_accounting", "scipy", "tenseal"}


def test_full_searches_for_cycles_pause_while_a_face_loads_and_go_on_after_an_error() -> None:
    usual, within = gc.get_threshold(), ()

    def load() -> None:
        nonlocal within
        with without_full_collections():
            within = gc.get_threshold()
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert within[:2] == usual[:2]
    assert within[2] > 10**6
    assert gc.get_threshold() == usual


def test_entry_points_follow_the_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "other-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[securefl.sums]\nmade = other:Made\n")
    assert "made" not in {point.name for point in entry_points(group="securefl.sums")}
    monkeypatch.syspath_prepend(tmp_path)
    assert "made" in {point.name for point in entry_points(group="securefl.sums")}
    assert "masked" not in {point.name for point in entry_points(group="securefl.protocols")}


def test_who_only_reads_keys_and_plans_does_not_wait_for_the_accountant() -> None:
    code = (
        "import sys; from securefl.deployment import keys, pinning, status; "
        "print('dp_accounting' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"]


def test_the_list_has_the_sentence_of_every_command() -> None:
    said = CliRunner().invoke(cli, ["--help"], terminal_width=200).output
    context = click.Context(cli)
    for name in Commands().list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        assert f"{name} " in said
        assert command.get_short_help_str(120) in said


def test_a_command_that_no_function_defines_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("made", f"{__name__}:MADE", "securefl.commands")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.setattr(Commands, "_points", staticmethod(lambda: {"made": point}))
    assert "Made of nothing." in CliRunner().invoke(cli, ["--help"]).output


MADE = click.Command("made", help="Made of nothing.")


def test_the_module_runs_as_the_command() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "securefl", "--version"], capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith("securefl, version ")


def test_the_parties_of_the_ledger_are_all_there_are() -> None:
    (party,) = (option for option in show.params if option.name == "party")
    assert isinstance(party.type, click.Choice)
    assert tuple(party.type.choices) == PARTIES


def test_the_parameters_are_what_the_matching_has() -> None:
    from securefl.matching.options import Word

    (params,) = (o for o in cli.get_command(click.Context(cli), "encrypt").params if o.name == "params")  # type: ignore[union-attr]
    assert tuple(params.type.choices) == get_args(Word)  # type: ignore[attr-defined]
