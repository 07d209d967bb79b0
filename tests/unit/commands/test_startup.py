"""Help comes at once: what a command works with is loaded where it is used."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from click.testing import CliRunner

import securefl
from securefl.commands.ledger import show
from securefl.commands.main import Commands, cli
from securefl.core.installed import entry_points
from securefl.core.release import PARTIES

SLOW = ("torch", "matplotlib", "dp_accounting", "scipy", "pandas", "tenseal", "sklearn", "opacus", "jinja2")
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "startup.py"
HELP = """
with click.Context(cli, info_name="securefl") as context:
    cli.get_help(context)
    for name in Commands().list_commands(context):
        command = cli.get_command(context, name)
        with click.Context(command, info_name=name) as inner:
            command.get_help(inner)
"""
ACCOUNTANT = {"dp_accounting", "scipy"}
PUBLIC = "--public K/public.key --evaluator V/evaluator"


def call(words: str) -> str:
    return f"cli({words.split()!r}, standalone_mode=False)"


STEPS: Sequence[tuple[str, set[str]]] = (
    (HELP, set()),
    (call("studies"), set()),
    (call("studies demo"), set()),
    (call("data list"), set()),
    (call("data fetch digits"), set()),
    (call("data describe patients.csv --public"), {"pandas"}),
    # Who only reads keys and plans does not wait for the accountant.
    ("from securefl.deployment import keys, pinning, status", set()),
    ("from securefl.study import comparison, comparison_report", {"pandas"}),
    ("from securefl.study import export, folder", {"torch", *ACCOUNTANT}),
    (call("calibrate --epsilon 1 --delta 1e-5 --sensitivity 1"), ACCOUNTANT),
    ("import securefl; securefl.Plan, securefl.SecureFLError", set()),
    ("import securefl; securefl.Profile, securefl.KeyHolder, securefl.Evaluator", {"tenseal"}),
    ("import securefl; securefl.SecureAggregator, securefl.masked_sum", ACCOUNTANT),
    ("import securefl; securefl.select_by_profile", {"tenseal", *ACCOUNTANT}),
    # A saved model predicts without the accountant.
    ("import securefl; securefl.load", {"torch"}),
    ("import securefl; securefl.run, securefl.forecast", {"torch", "pandas", *ACCOUNTANT}),
    # The study's own net.py loads scikit-learn. No picture is drawn, and nothing encrypted.
    (call("plan own_table.toml"), {"torch", "pandas", "sklearn", *ACCOUNTANT}),
    # A key holder's key is a homomorphic one, and so are what is encrypted to it and the match.
    (call("keygen --role key-holder --out K"), {"tenseal"}),
    (call("keygen --role evaluator --out V"), {"tenseal"}),
    (call(f"encrypt {PUBLIC}.pub --profile p.json --out p.enc"), {"tenseal"}),
    (call(f"match {PUBLIC}.key --baseline p.json p.enc --out s.enc"), {"tenseal"}),
    # What is read is charged in the key holder's ledger.
    (call("reveal --secret K/secret.key --evaluator V/evaluator.pub s.enc"), {"tenseal", *ACCOUNTANT}),
)
"""What a process does, and which of the slow libraries it loads for it."""
ALL_STEPS = """
import os
import sys
import click
from securefl.commands.main import Commands, cli

for code in %r:
    child = os.fork()
    if child == 0:
        exec(code)
        print("LOADED", *(name for name in %r if name in sys.modules), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"failed: {code}")
"""


def test_each_call_loads_only_what_it_needs(tmp_path: Path) -> None:
    for name in ("own_table.toml", "patients.csv", "net.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    (tmp_path / "p.json").write_text('{"mean": [0.1, 0.2], "variance": [1.0, 1.1]}')
    code = ALL_STEPS % ([code for code, _ in STEPS], SLOW)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    lines = [set(line.split()[1:]) for line in found.stdout.split("\n") if line.startswith("LOADED")]
    assert [(step, loaded) for (step, _), loaded in zip(STEPS, lines, strict=True)] == [*STEPS]


def _words(name: str, command: click.Command) -> Iterator[str]:
    """A command's words, or those of each command of a group."""
    if not isinstance(command, click.Group):
        yield name
        return
    context = click.Context(command)
    for word in command.list_commands(context):
        found = command.get_command(context, word)
        assert found is not None
        yield from _words(f"{name} {word}", found)


def test_the_benchmark_has_each_command_and_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("startup", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    startup = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "startup", startup)  # its dataclasses look for their module
    spec.loader.exec_module(startup)
    timed = [case.name for case in startup.CASES]
    all_of_them = [*_words("securefl", cli), *(f"securefl.{name}" for name in securefl.__all__)]
    missing = [
        words
        for words in all_of_them
        if not any(name == words or name.startswith((f"{words} ", f"{words}(")) for name in timed)
    ]
    assert missing == []


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


def test_the_parameters_and_variants_are_what_the_matching_has() -> None:
    from securefl.matching.options import Word
    from securefl.matching.profiles import Variant

    found: dict[str | None, Any] = {
        o.name: o.type
        for o in cli.get_command(click.Context(cli), "encrypt").params  # type: ignore[union-attr]
    }
    assert tuple(found["params"].choices) == get_args(Word)
    assert tuple(found["variant"].choices) == tuple(Variant)
