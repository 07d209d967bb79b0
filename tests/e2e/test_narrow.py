"""What every command prints on a terminal of 60 and 80 columns: no word is broken and no figure is lost."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.command_line import securefl
from support.every import every
from support.tiny_study import FEDAVG, FEDPROF, text

from securefl.commands.main import Commands, cli
from securefl.core.installed import entry_points
from securefl.report import terminal

WIDTHS = (60, 80)
GRID = '[sweep.grid]\n"data.clients" = [5, 6]\n'
KEYS = "--public K/public.key --evaluator V/evaluator.pub"
SCRIPT = (
    "studies",
    "data list",
    "data describe people.csv --public --target label",
    "calibrate --epsilon 1 --delta 1e-5 --sensitivity 1",
    "plan study.toml --workers 1",
    "run study.toml --out run --workers 1",
    "run study.toml --out run --workers 1",
    "report run",
    "export run --arm FedAvg --out model.safetensors",
    "ledger show run/private/arms/fedavg/seed-3/ledger.sqlite",
    "ledger curve run/private/arms/fedavg/seed-3/ledger.sqlite",
    "ledger epsilon --events events.json --delta 1e-5",
    "plan sweep.toml --workers 1",
    "sweep sweep.toml --out sweep --workers 1",
    "reproduce",
    "keygen --role key-holder --out K --params pads",
    "keygen --role evaluator --out V",
    f"encrypt {KEYS} --params pads --profile p.json -o p.enc",
    "match --public K/public.key --evaluator V/evaluator.key --params pads --baseline b.json p.enc -o s.enc",
    "reveal --secret K/secret.key --evaluator V/evaluator.pub s.enc",
    "party init P study.toml --arm FedAvg --client 0 --yes",
    "party enrol P",
    "party status P",
    "run demoo",
    "run demo --output here",
    "data fetch mnists",
)
"""Commands that a person runs one after the other in one folder."""
FOR_PROGRAMS = ("data describe", "party enrol")
"""What these print on stdout is for a file, so its lines stay whole."""


def commands(group: click.Group, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield (*names, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*names, name))


def test_the_list_of_commands_is_whole() -> None:
    assert isinstance(cli, Commands)
    assert {names[0] for names, _ in commands(cli, ())} == {
        point.name for point in entry_points(group="securefl.commands")
    }


@every("width", [50, *WIDTHS])
def test_help_breaks_no_word(width: int) -> None:
    seen = 0
    for names, command in [((), cli), *commands(cli, ())]:
        made = command.context_class
        narrow, wide = (
            command.get_help(made(command, info_name=" ".join(("securefl", *names)), terminal_width=columns))
            for columns in (width, 500)
        )
        assert narrow.split() == wide.split(), names
        long = [line for line in narrow.split("\n") if len(line) > width and len(line.split()) > 1]
        assert long == [], names
        seen += 1
    assert seen > 30


def narrow_lines(said: str, width: int) -> list[str]:
    """The lines that a terminal of this width would break inside."""
    return [line for line in said.split("\n") if len(line) > width and len(line.split()) > 1]


@pytest.mark.docs
@pytest.mark.parametrize("width", [pytest.param(60, marks=pytest.mark.slow), 80])
def test_every_line_fits(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "study.toml": text(FEDAVG, FEDPROF, rounds=1),
        "sweep.toml": text(FEDAVG, rounds=1) + GRID,
        "people.csv": "age,income,label\n31,20,0\n42,30,1\n27,25,0\n55,41,1\n",
        "events.json": '{"event": "gaussian", "noise_multiplier": 4.0, "count": 3}',
        "p.json": '{"mean": [0.5, 1.0, 2.0], "variance": [1.0, 1.0, 0.5]}',
        "b.json": '{"mean": [0.0, 1.0, 1.0], "variance": [1.0, 1.0, 1.0]}',
    }.items():
        (tmp_path / name).write_text(content)
    wrapped, whole = terminal.wrapped, list[str]()

    def watched(said: str, columns: int | None) -> str:
        made = wrapped(said, columns)
        assert made.split() == said.split(), "no word is broken, and none is lost"
        whole.append(said)
        return made

    # As on a terminal of this width. Lines of progress are those of a file: `capfd` is none.
    monkeypatch.setattr(terminal, "columns_of", lambda stream: width)
    monkeypatch.setattr(terminal, "wrapped", watched)
    for line in SCRIPT:
        code, out, err = securefl(capfd, *line.split())
        assert code in (0, 1, 2, 4), (line, err)
        if not line.startswith(FOR_PROGRAMS):
            assert narrow_lines(out, width) == [], line
        told = [own for own in err.split("\n") if " round " not in own and "trained for" not in own]
        assert narrow_lines("\n".join(told), width) == [], line
    assert len(whole) > 60
    figures = " ".join(" ".join(whole).split())
    assert "all records in one place" in figures
    assert sys.getdefaultencoding() == "utf-8"


@every("width", WIDTHS)
def test_messages_of_mistakes_wrap_between_words(width: int) -> None:
    listed = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8"))
    for mistake in listed["mistake"]:
        made = terminal.wrapped(f"securefl: {mistake['said']}", width)
        assert narrow_lines(made, width) == []
