"""Help comes at once: what a command works with is loaded where it is used."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from securefl import __version__
from securefl.commands.ledger import show
from securefl.commands.main import Commands, cli, version
from securefl.core.installed import entry_points
from securefl.core.release import PARTIES

SLOW = (
    *("torch", "matplotlib", "dp_accounting", "scipy", "pandas", "tenseal", "sklearn", "opacus", "jinja2"),
    *("flwr", "ray"),
)
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
HELP = """
with click.Context(cli, info_name="securefl") as context:
    cli.get_help(context)
    for name in Commands().list_commands(context):
        command = cli.get_command(context, name)
        with click.Context(command, info_name=name) as inner:
            command.get_help(inner)
"""
ACCOUNTANT = ("dp_accounting", "scipy")
PUBLIC = "--public K/public.key --evaluator V/evaluator"


def call(words: str) -> str:
    return f"cli({words.split()!r}, standalone_mode=False)"


LOADED: Sequence[tuple[tuple[str, ...], Sequence[str]]] = (
    (
        (),
        (
            HELP,
            call("studies"),
            call("studies demo"),
            call("data list"),
            call("data fetch digits"),
            # Who only reads keys and plans does not wait for the accountant.
            "from securefl.deployment import keys, pinning, status",
            "import securefl; securefl.Plan, securefl.SecureFLError",
        ),
    ),
    (
        ("pandas",),
        (
            call("data describe patients.csv --public"),
            "from securefl.study import comparison",
        ),
    ),
    # A saved model predicts without the accountant.
    (("torch",), ("import securefl; securefl.load",)),
    (
        ("tenseal",),
        (
            "import securefl; securefl.Profile, securefl.KeyHolder, securefl.Evaluator",
            # A key holder's key is a homomorphic one, and so are what is encrypted to it and the match.
            call("keygen --role key-holder --out K"),
            call("keygen --role evaluator --out V"),
            call(f"encrypt {PUBLIC}.pub --profile p.json --out p.enc"),
            call(f"match {PUBLIC}.key --baseline p.json p.enc --out s.enc"),
        ),
    ),
    (
        ACCOUNTANT,
        (
            call("calibrate --epsilon 1 --delta 1e-5 --sensitivity 1"),
            "import securefl; securefl.SecureAggregator, securefl.masked_sum",
            # A party of Flower's reads its terms without Flower.
            "from securefl.flower import AppTerms",
        ),
    ),
    (
        (*ACCOUNTANT, "tenseal"),
        (
            "import securefl; securefl.select_by_profile",
            # What is read is charged in the key holder's ledger.
            call("reveal --secret K/secret.key --evaluator V/evaluator.pub s.enc"),
        ),
    ),
    ((*ACCOUNTANT, "torch"), ("from securefl.study import export, folder",)),
    ((*ACCOUNTANT, "torch", "pandas"), ("import securefl; securefl.run, securefl.forecast",)),
    # The study's own net.py loads scikit-learn. No picture is drawn, and nothing encrypted.
    ((*ACCOUNTANT, "torch", "pandas", "sklearn"), (call("plan own_table.toml"),)),
)
"""What a process does, by the slow libraries that it may load for it."""
ALL_STEPS = """
import os
import sys
from importlib import import_module

import click
from securefl.commands.main import Commands, cli, version

steps, slow = %r, %r
before = set(sys.modules)
for name in sorted({name for loaded, codes in steps for name in loaded}):
    import_module(name)


def done(loaded, codes):
    # Libraries that a step may load are there before it, and the others as if nobody had loaded them.
    hidden = {name for name in slow if name not in loaded}
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in hidden:
            del sys.modules[name]
    for code in codes:
        exec(code, globals())
        print("LOADED", *sorted(name for name in slow if name in sys.modules), flush=True)


for loaded, codes in steps:
    if os.fork() == 0:
        done(loaded, codes)
        os._exit(0)
    if os.wait()[1] != 0:
        sys.exit(1)
"""


def test_each_call_loads_only_what_it_may(tmp_path: Path) -> None:
    for name in ("own_table.toml", "patients.csv", "net.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    (tmp_path / "p.json").write_text('{"mean": [0.1, 0.2], "variance": [1.0, 1.1]}')
    code = ALL_STEPS % (LOADED, SLOW)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    lines = [line.split()[1:] for line in found.stdout.split("\n") if line.startswith("LOADED")]
    assert lines == [sorted(names) for names, codes in LOADED for _ in codes]


def test_entry_points_follow_the_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "other-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[securefl.sums]\nmade = other:Made\n")
    assert "made" not in {point.name for point in entry_points(group="securefl.sums")}
    monkeypatch.syspath_prepend(tmp_path)
    assert "made" in {point.name for point in entry_points(group="securefl.sums")}
    assert "masked" not in {point.name for point in entry_points(group="securefl.protocols")}


def test_the_list_has_the_sentence_of_every_command() -> None:
    said = CliRunner().invoke(cli, ["--help"], terminal_width=200).output
    context = click.Context(cli)
    for name in Commands().list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        assert f"{name} " in said
        assert command.get_short_help_str(120) in said


def test_the_list_has_groups() -> None:
    said = CliRunner().invoke(cli, ["--help"]).output.split("\n\n")
    heads = {part.split()[0]: part for part in said}
    for title, name in (
        ("Studies:", "run"),
        ("Matching:", "reveal"),
        ("Parties:", "party"),
        ("Tools:", "audit"),
    ):
        assert f"\n  {name} " in heads[title]


@pytest.mark.parametrize(
    ("words", "begun", "found"),
    [
        (["run"], "dem", ["demo"]),
        (["studies"], "gas", ["gas_turbine", "gas_turbine_noise", "gas_turbine_v1"]),
        (["reproduce"], "adds_table_4", ["adds_table_4", "adds_table_4_twin"]),
        (["plan"], "./mine", ["./mine"]),
    ],
)
def test_names_are_completed(words: list[str], begun: str, found: list[str]) -> None:
    completion = ShellComplete(cli, {}, "securefl", "_SECUREFL_COMPLETE")
    assert [one.value for one in completion.get_completions(words, begun)] == found


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


def test_a_version_names_the_commit_that_a_package_was_built_from(tmp_path: Path) -> None:
    assert version(tmp_path / "commit.txt") == __version__
    (tmp_path / "commit.txt").write_text("0123abc-dirty\n", encoding="utf-8")
    assert version(tmp_path / "commit.txt") == f"{__version__} (0123abc-dirty)"


def test_the_parties_of_the_ledger_are_all_there_are() -> None:
    (party,) = (option for option in show.params if option.name == "party")
    assert isinstance(party.type, click.Choice)
    assert tuple(party.type.choices) == PARTIES


def test_the_parameters_and_variants_are_what_the_matching_has() -> None:
    from securefl.matching.options import Word
    from securefl.matching.profiles import Variant

    found: dict[str | None, Any] = {
        o.name: o.type
        for o in cli.get_command(click.Context(cli), "encrypt").params  # type: ignore[union-attr]
    }
    assert tuple(found["params"].choices) == get_args(Word)
    assert tuple(found["variant"].choices) == tuple(Variant)
