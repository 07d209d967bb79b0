"""Folders and files that a party's commands cannot use: our words, with what to do, and exit code 1."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.every import every
from support.read_only import bound_by_modes

from securefl.commands.main import cli
from securefl.core.errors import SecureFLError

ON_A_FOLDER = (
    ("party", "status"),
    ("party", "serve"),
    ("party", "coordinate"),
    ("party", "enrol"),
    ("party", "rotate"),
    ("party", "recount", "--yes"),
    ("party", "pin"),
)


def missing(place: Path) -> None:
    pass


def a_file(place: Path) -> None:
    place.write_text("x")


def empty(place: Path) -> None:
    place.mkdir()


def a_socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))


MADE: dict[Callable[[Path], None], str] = {
    missing: "Expected a party's folder, got place: No such file or directory. Name the folder that",
    a_file: "Expected a party's folder, got place, which is a file. Name the folder that",
    a_socket: "Expected a party's folder, got place, which is a socket. Name the folder that",
    empty: "Expected a party's folder, got place, which has no party.toml. Make one: securefl party init.",
}


@every("words", ON_A_FOLDER)
@every("make", MADE)
def test_what_is_no_partys_folder(
    make: Callable[[Path], None], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("place"))
    Path("roster.jsonl").write_text("")
    more = ["roster.jsonl"] if words[1] == "pin" else []
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(cli, [*words, "place", *more])
    assert isinstance(done.exception, SecureFLError), (done.output, done.exception)
    if not (make is empty and words[1] == "pin"):  # its roster is read first
        assert str(done.exception).startswith(MADE[make])
    left = [one for one in sorted(tmp_path.rglob("*")) if one.name != ".lock"]
    assert left == before


@every("what", ["missing", "folder", "text", "empty"])
def test_what_is_no_ledger(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = Path("place")
    if what == "folder":
        (place / "client-0000").mkdir(parents=True)
        (place / "client-0000" / "ledger.sqlite").write_text("")
    elif what != "missing":
        place.write_text("" if what == "empty" else "a text, which is no database")
    said = {
        "missing": "place: Expected a file, got none (No such file or directory). Check the path.",
        "folder": "Expected a ledger's file, got the folder place. Name the file in it. There is "
        "place/client-0000/ledger.sqlite.",
        "text": "Expected a ledger, got place, which is no database. Name a ledger.sqlite.",
        "empty": "Expected a ledger, got place, which is no database. Name a ledger.sqlite.",
    }
    for word in ("show", "runs"):
        done = CliRunner().invoke(cli, ["ledger", word, "place"])
        assert isinstance(done.exception, SecureFLError)
        assert str(done.exception).startswith(said[what])


@every("which", ["folder", "--counter"])
def test_init_names_a_file_in_a_folders_place(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("place").write_text("x")
    words = ["place"] if which == "folder" else ["new", which, "place"]
    done = CliRunner().invoke(cli, ["party", "init", *words, "demo", "--client", "0", "--yes", *ARM])
    assert str(done.exception) == "Expected a new folder, got place, which is a file. Choose another name."
    assert not Path("new").exists()


ARM = ("--arm", "FedAvg (full)")


OF_ANOTHER = {
    ("party", "status", "owners"): "Expected a party's folder, got owners of user ",
    ("party", "coordinate", "owners"): "Expected a party's folder, got owners of user ",
    ("party", "status", "owners/p"): "Expected a party's folder, got owners/p, in a folder that user ",
    ("ledger", "show", "owners/ledger.sqlite"): "Expected a file that you may read, got a refusal",
}
CALLS = f"""
from click.testing import CliRunner
from securefl.commands.main import cli
from securefl.core.errors import SecureFLError
for words in {list(OF_ANOTHER)}:
    error = CliRunner().invoke(cli, words).exception
    assert isinstance(error, SecureFLError), (words, error)
    print(repr(str(error)))
"""


def test_a_folder_of_another_owner(tmp_path: Path) -> None:
    """By a process that is bound by the modes of files."""
    (tmp_path / "owners" / "p").mkdir(parents=True)
    (tmp_path / "owners").chmod(0o000)
    command = [*bound_by_modes(), sys.executable, "-c", CALLS]
    try:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    finally:
        (tmp_path / "owners").chmod(0o700)
    assert done.returncode == 0, done.stderr
    for error, said in zip(done.stdout.splitlines(), OF_ANOTHER.values(), strict=True):
        assert said in error
