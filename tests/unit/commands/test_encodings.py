"""Commands on terminals of Latin-1, cp1252 and ASCII: no character ends them, and files are UTF-8."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from support.tiny_study import FEDAVG, text

from securefl.commands.main import cli, main

ENCODINGS = ("ascii", "latin-1", "cp1252")
NAME = "Größe ∞ 😀"
SHOWN = {
    "ascii": r"Gr\u00f6\u00dfe inf \ud83d\ude00",
    "latin-1": r"Größe inf \ud83d\ude00",
    "cp1252": r"Größe inf \ud83d\ude00",
}
CALIBRATE = ("--epsilon", 1, "--delta", 1e-5, "--sensitivity", 1)
Typed = Callable[..., tuple[str, str]]


class Screen(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    def run(encoding: str, *words: object, code: int = 0) -> tuple[str, str]:
        """What a command writes on a terminal that knows this encoding alone: stdout and stderr."""
        out, err = (Screen(io.BytesIO(), encoding, "strict", write_through=True) for _ in range(2))
        with monkeypatch.context() as here:
            here.setattr(sys, "argv", ["securefl", *map(str, words)])
            here.setattr(sys, "stdout", out)
            here.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as left:
                main()
        said, told = (stream.buffer.getvalue().decode(encoding) for stream in (out, err))  # type: ignore[attr-defined]
        assert left.value.code == code, told
        return said, told

    return run


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(click.Context(group)):
        own = group.get_command(click.Context(group), name)
        yield from commands(own, *names, name) if isinstance(own, click.Group) else [(*names, name)]


def test_help(typed: Typed) -> None:
    for words in commands(cli):
        for encoding in ENCODINGS:
            assert "Usage: securefl" in typed(encoding, *words, "--help")[0]


def test_a_run_and_what_is_read_of_it(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = text(FEDAVG.replace("FedAvg", NAME), rounds=1)
    study = study.replace("learning_rate = 0.2", "learning_rate = 0.8")  # one round has to teach it something
    Path("ε.toml").write_text(study, encoding="utf-8")
    for encoding in ENCODINGS:
        name = SHOWN[encoding]
        said, told = typed(encoding, "run", "ε.toml", "--out", "r")
        assert f"{name} ended at" in said
        assert all(part in told for part in (f"{name} ", "1/1", "epsilon server=inf")), "the progress bar"
        said, told = typed(encoding, "plan", "ε.toml")
        assert f"{name}\n  server      epsilon      inf" in said
        assert f"* rehearsing {name}" in told.replace("\x1b[32m", "").replace("\x1b[0m", "")
        assert name in typed(encoding, "report", "r")[0]
        (ledger,) = Path("r").rglob("ledger.sqlite")
        assert "inf" in typed(encoding, "ledger", "show", ledger)[0]
        shutil.copytree("r", NAME, dirs_exist_ok=True)
        assert name in typed(encoding, "compare", "r", NAME)[0]
        assert "sigma" in typed(encoding, "calibrate", *CALIBRATE)[0]
    found = json.loads(typed("ascii", "run", "ε.toml", "--out", "r", "--json")[0])
    assert found["arms"][0]["name"] == NAME, "a program gets the name itself"
    assert Path("r", "study.toml").read_text(encoding="utf-8") == study
    assert NAME in Path("r", "report.html").read_text(encoding="utf-8")


def test_a_table_of_ones_own(typed: Typed, tmp_path: Path) -> None:
    """The section that is proposed for a study is TOML on any terminal, and has the names of the table."""
    table = tmp_path / "own.csv"
    table.write_text("größe,art\n" + "".join(f"{n},{'ja' if n % 3 else 'nö'}\n" for n in range(60)), "utf-8")
    for encoding in ENCODINGS:
        said, _ = typed(encoding, "data", "describe", table, "--target", "art", "--public")
        assert "größe" in str(tomllib.loads(said))


def test_an_error(typed: Typed) -> None:
    for encoding in ENCODINGS:
        assert SHOWN[encoding] in typed(encoding, "run", NAME, code=1)[1]
    assert r"\udcff" in typed("utf-8", "run", "\udcff", code=1)[1], "a byte that is no UTF-8"


def test_a_name_that_no_file_can_have(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a locale of ASCII names the files, which Python has only with PYTHONUTF8=0."""

    def encoded(*_: object, **__: object) -> None:
        "größe".encode(encoding)

    monkeypatch.setattr("securefl.commands.main.cli", encoded)
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    encoding = "ascii"
    told = typed("latin-1", "run", "größe", code=1)[1]
    assert all(part in " ".join(told.split()) for part in ("'größe'", "Set PYTHONUTF8=1"))
    encoding = "cp1253"  # a fault of ours, which no setting mends
    with pytest.raises(UnicodeEncodeError):
        main()
