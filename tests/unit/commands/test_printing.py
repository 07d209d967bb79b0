"""Help on a narrow terminal breaks no word, and keeps lines that are not to be joined."""

from __future__ import annotations

import click
import pytest
from support.every import every

from securefl.commands.printing import Help, echo

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


@pytest.mark.parametrize("err", [False, True])
def test_a_text_for_a_person_controls_no_terminal(err: bool, capsys: pytest.CaptureFixture[str]) -> None:
    echo("a \x1b[2J\u202e name\nthe next line", err=err)
    assert capsys.readouterr()[err] == "a \\x1b[2J\\u202e name\nthe next line\n"
