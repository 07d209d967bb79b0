"""Help comes at once: what a command works with is loaded where it is used."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import get_args

import click
import pytest
from click.testing import CliRunner

from securefl.commands.ledger import show
from securefl.commands.main import Commands, cli
from securefl.core.release import PARTIES

SLOW = ("torch", "matplotlib", "dp_accounting", "scipy", "pandas", "tenseal", "sklearn", "opacus")
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
