"""Help on a narrow terminal breaks no word, and keeps lines that are not to be joined."""

from __future__ import annotations

import click
import pytest
from support.every import every

from securefl.commands.printing import Help, echo
from securefl.commands.telling import echo_measures
from securefl.report.run_page import MeasureRow

SENTENCE = (
    "With full aggregation FedProf needed 27 rounds; go on with: securefl run runs/demo/study.toml --out x"
)


@click.command(epilog="Example:  securefl thing --weight-bound-of-everything 12 --another-long-option yes")
@click.argument("folder")
@click.option("--weight-bound-of-everything", type=click.Choice(["one-word", "another-word"]), help=SENTENCE)
@click.option("-o", "--out", help="A file.")
def thing() -> None:
    """Do a thing that takes more than sixty columns to say, with add-remove and replace-one.

    \b
    1  first   securefl keygen --role key-holder --out K    gives K/public.key to all
    2  second  nothing

    The rest.
    """


@every("width", [50, 60, 80])
def test_help_breaks_no_word(width: int) -> None:
    def shown(width: int) -> str:
        context = click.Context(thing, info_name="securefl thing", terminal_width=width)
        context.formatter_class = Help  # type: ignore[misc]
        return thing.get_help(context)

    narrow, wide = shown(width), shown(400)
    assert narrow.split() == wide.split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in narrow.split("\n"))
    assert "\n  2  second  nothing\n" in narrow, "lines that are not to be joined"
    assert "Example:  securefl thing" in narrow


def test_a_row_has_the_accuracy_of_the_clients_whose_lowest_tenth_it_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Clients alone: 0.297 on the server's records, 0.993 on their own kind. The tenth is of the second."""
    no = float("nan")
    row = MeasureRow(
        name="each client alone",
        models="global",
        accuracy=0.297,
        auc=no,
        f1=no,
        ece=no,
        r2=no,
        rmse=no,
        at_clients=0.993,
        worst_decile=0.967,
    )
    echo_measures([row])
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["model", "accuracy", "at", "clients", "worst", "10%"]
    assert said[1].split() == ["each", "client", "alone", "0.297", "0.993", "0.967"]
    assert "test records like each client's own" in " ".join(said)


@pytest.mark.parametrize("err", [False, True])
def test_a_text_for_a_person_controls_no_terminal(err: bool, capsys: pytest.CaptureFixture[str]) -> None:
    echo("a \x1b[2J\u202e name\nthe next line", err=err)
    assert capsys.readouterr()[err] == "a \\x1b[2J\\u202e name\nthe next line\n"
