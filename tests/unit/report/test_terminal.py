"""Text on a narrow terminal: no word is broken, nothing is lost, and pipes get whole lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.every import every

from securefl.report import terminal
from securefl.report.terminal import columns_of, cut, say, shortened, table, wrapped

SENTENCE = (
    "With full aggregation FedProf needed 27 rounds; go on with: securefl run runs/demo/study.toml --out x"
)


@every("width", [20, 60, 80])
def test_a_line_wraps_between_words(width: int) -> None:
    lines = wrapped(f"  {SENTENCE}", width).split("\n")
    assert " ".join(" ".join(lines).split()) == SENTENCE
    assert all(line.startswith("  ") for line in lines), "under its indent"
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
    assert len(lines) > 1


def test_a_pipe_gets_the_line() -> None:
    assert columns_of(io.StringIO()) is None
    assert wrapped(SENTENCE, None) == SENTENCE


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@every(("said", "width"), [("60", 60), ("", 80), ("0", 80), ("wide", 80)])
def test_a_terminal_says_its_width(said: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", said)
    monkeypatch.setattr(terminal.shutil, "get_terminal_size", lambda: terminal.os.terminal_size((80, 24)))
    assert columns_of(Screen()) == width


HEAD = ["model", "accuracy", "worst 10%"]
ROWS = [["FedProf with full matching under pads", "0.948", "0.761"], ["FedAvg", "0.937", "–"]]


def test_a_table_that_fits() -> None:
    lines = table(HEAD, ROWS, 80).split("\n")
    assert lines == table(HEAD, ROWS, None).split("\n")
    assert len({line.index("0.9") for line in lines[1:]}) == 1, "one column"


def test_a_long_name_keeps_its_two_ends() -> None:
    assert cut("a" * 30, 30) == "a" * 30
    assert cut(f"{'a' * 30} 1", 20) == f"{'a' * 10}…{'a' * 7} 1"
    assert cut("a" * 99, 1) == "…"


@pytest.mark.parametrize("most", [16, 40, 90])
def test_names_are_cut_where_they_are_alike(most: int) -> None:
    """Forty names that differ in their middle, and in two places, stay forty names."""
    names = [
        f"Averaging of {'private ' * 5}updates at rate {at // 8} with {'a long tail of ' * 4}words {at % 8}"
        for at in range(40)
    ]
    cut_names = shortened([*names, "FedLog"], most)
    assert len(set(cut_names)) == 41
    assert max(map(len, cut_names)) <= most
    assert cut_names[-1] == "FedLog"
    assert all(str(at // 8) in name and name.endswith(str(at % 8)) for at, name in enumerate(cut_names[:-1]))
    assert shortened(names, 200) == names
    assert shortened(["x" * 30], 10) == ["xxxxx…xxxx"]


def test_a_table_folds_its_widest_column() -> None:
    lines = table(HEAD, ROWS, 42).split("\n")
    assert max(map(len, lines)) <= 42
    assert lines[1].split() == ["FedProf", "with", "full", "0.948", "0.761"]
    assert lines[2:] == ["matching under pads", "FedAvg                 0.937     –"]


def test_a_table_on_a_very_narrow_terminal_stands_its_cells_under_each_other() -> None:
    lines = table(HEAD, ROWS, 24).split("\n")
    assert "  accuracy 0.948" in lines
    assert "  worst 10% 0.761" in lines
    assert max(map(len, lines)) <= 24


@every("width", [40, 60])
def test_a_line_on_a_console(width: int) -> None:
    shown, piped = Screen(), io.StringIO()
    say(Console(file=shown, force_terminal=True, width=width), SENTENCE)
    say(Console(file=piped, width=width), SENTENCE)
    assert piped.getvalue() == f"{SENTENCE}\n"
    assert " ".join(shown.getvalue().split()) == SENTENCE
    assert max(map(len, shown.getvalue().split("\n"))) <= width
