"""Files that cannot be opened or read: refused by name and in our words, while others are scored."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import click
import pytest
from support.bad_files import BAD, put
from support.command_line import securefl
from support.matching_place import CLIENTS, Place, write
from support.offenders import offenders

from securefl.commands.encrypt import encrypt
from securefl.commands.keygen import keygen
from securefl.commands.match import match
from securefl.commands.profile import profile
from securefl.commands.reveal import reveal

CLICKS = ("Usage:", "Error:", "Try ", "Invalid value", "does not exist", "is a directory")
MODEL = '[model]\nkind = "mlp"\nhidden = [5]\nprofiled_layer = "fc1"\n[weights]\noutputs = 2\n'


def ours(err: str) -> bool:
    return not any(word in err for word in CLICKS)


def matched(place: Place, capfd: pytest.CaptureFixture[str], *files: str) -> tuple[int, str, str]:
    keys = ("--public", place.root / "K/public.key", "--evaluator", place.root / "V/evaluator.key")
    named = [place.root / name for name in files]
    out = place.root / "scores.enc"
    return securefl(capfd, "match", *keys, "--baseline", place.root / "b.json", *named, "-o", out)


CUT = {
    "empty": (lambda raw: b"", "got an empty file"),
    "cut": (lambda raw: raw[:-1], "damaged or truncated"),
    "cut in its header": (lambda raw: raw[:300], "damaged or truncated"),
    "foreign": (lambda raw: b"PK\x03\x04" + raw, "a file that securefl did not write"),
    "another kind": (lambda raw: raw.replace(b"encrypted-profile", b"public-key", 1), "got a public-key"),
    "of zeros": (lambda raw: bytes(4096), "a file that securefl did not write"),
}


def test_an_unreadable_profile_is_refused_by_name_and_the_others_are_scored(
    fresh: Callable[[], Place], capfd: pytest.CaptureFixture[str]
) -> None:
    def check(what: str) -> None:
        place = fresh()
        path = place.root / "p1.enc"
        if what in BAD:
            said = put(path, what)
        else:
            change, said = CUT[what]
            path.write_bytes(change(path.read_bytes()))
        code, out, err = matched(place, capfd, "p1.enc", "p2.enc")
        assert code == 3
        assert f"securefl: {path} refused: Expected " in err
        assert said in err
        assert ours(err)
        assert f"{place.root}/p2.enc -> p2\n" in out
        assert ": 1 scores for key holder" in out

    assert offenders([*BAD, *CUT], check) == []


def test_a_file_beyond_the_limit_is_refused_unread(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    path = place.root / "p1.enc"
    with path.open("r+b") as target:
        target.truncate(2**40)  # of zeros, which take no space
    code, _, err = matched(place, capfd, "p1.enc", "p2.enc")
    assert code == 3
    assert "p1.enc refused: Expected an encrypted-profile file of at most 67,108,864 bytes, got 1,099," in err


def test_names_that_are_no_text_or_too_long_are_refused_by_name(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    odd = os.fsdecode(b"p\xff.enc")
    (place.root / odd).write_bytes(b"junk")
    code, _, err = matched(place, capfd, odd, "x" * 300, "p2.enc")
    assert code == 3
    assert r"p\udcff.enc' refused: Expected an encrypted-profile file, got a file that" in err
    assert "File name too long" in err


def test_where_no_file_can_be_read_none_is_written(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    (place.root / "scores.enc").unlink()
    for name, what in (("p1.enc", "a pipe"), ("p2.enc", "missing")):
        put(place.root / name, what)
    code, _, err = matched(place, capfd, "p1.enc", "p2.enc")
    assert code == 2
    assert err.count(" refused: Expected ") == 2
    assert "no profile is left to match" in err
    assert not (place.root / "scores.enc").exists()


_AS_NOBODY = """
import glob, os, sys
from click.testing import CliRunner
from securefl.commands.main import cli, main
# Once as root: all modules are imported, which another user may not read.
assert CliRunner().invoke(cli, sys.argv[1:]).exit_code == 0
os.unlink("s.enc")
for record in glob.glob("V/matched-*"):
    os.unlink(record)
os.chmod("V", 0o777)
os.chmod("p1.enc", 0)
os.chmod("locked", 0)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user, whom root alone can become")
def test_a_strangers_file_is_refused_by_name(place: Place) -> None:
    for path in (place.root, *place.root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for parent in place.root.parents[:4]:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(0o755)
    (place.root / "locked").mkdir()
    write(place.root / "p3.json", CLIENTS["p1"])
    place.encrypt("p3")
    (place.root / "p3.enc").rename(place.root / "locked" / "p3.enc")
    place.root.chmod(0o777)
    words = ["match", "--public", "K/public.key", "--evaluator", "V/evaluator.key", "--baseline", "b.json"]
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, *words, "p1.enc", "locked/p3.enc", "p2.enc", "-o", "s.enc"],
        cwd=place.root,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    for name in ("p1.enc", "locked/p3.enc"):
        assert f"securefl: {name} refused: Expected a file that you may read, got a refusal" in done.stderr
    assert "p2.enc -> p2" in done.stdout


def test_a_refusal_of_the_system_is_told_with_its_remedy(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without another user."""
    opens = os.open

    def refusing(path: object, *rest: object, **more: object) -> int:
        if str(path).endswith("p1.enc"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opens(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("securefl.storage.inputs.os.open", refusing)
    code, _, err = matched(place, capfd, "p1.enc", "p2.enc")
    assert code == 3
    assert "p1.enc refused: Expected a file that you may read, got a refusal (Permission denied)" in err


# Each other file that a command is given ----------------------------------------------------------------

KEYS = ("--public", "K/public.key", "--evaluator", "V/evaluator.pub")
COMMANDS = {
    "match": ("match", *KEYS[:3], "V/evaluator.key", "--baseline", "b.json", "p1.enc", "-o", "s"),
    "encrypt": ("encrypt", *KEYS, "--profile", "p1.json", "--anchor", "a.json", "-o", "p1.enc"),
    "encrypt a baseline": ("encrypt", *KEYS, "--baseline", "b.json", "-o", "b.enc"),
    "reveal": ("reveal", "--secret", "K/secret.key", *KEYS[2:], "scores.enc"),
    "profile": ("profile", "--data", "d.npy", "--model", "m.toml", "-o", "g.json"),
    "profile of a table": ("profile", "--data", "d.csv", "--model", "m.toml", "-o", "g.json"),
    "weights": ("profile", "--data", "digits", "--model", "weighted.toml", "-o", "g.json"),
}
GIVEN = [
    ("match", "K/public.key"),
    ("match", "V/evaluator.key"),
    ("match", "b.json"),
    ("encrypt", "p1.json"),
    ("encrypt", "a.json"),
    ("encrypt", "V/evaluator.pub"),
    ("encrypt a baseline", "b.json"),
    ("reveal", "K/secret.key"),
    ("reveal", "V/evaluator.pub"),
    ("reveal", "scores.enc"),
    ("profile", "d.npy"),
    ("profile of a table", "d.csv"),
    ("weights", "weighted.toml"),
    ("weights", "w.npy"),
]


def test_every_other_file_is_refused_by_name_at_once(
    fresh: Callable[[], Place], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(case: tuple[str, str, str]) -> None:
        command, name, what = case
        if (path := Path(name)).is_dir():
            path.rmdir()
        said = put(path, what)
        code, out, err = securefl(capfd, *COMMANDS[command])
        assert code == 1
        assert err.startswith(f"securefl: {name}: Expected ")
        assert said in err
        assert ours(err)
        assert not out

    for command, name in GIVEN:
        monkeypatch.chdir(fresh().root)
        write(Path("a.json"), CLIENTS["p2"])
        Path("m.toml").write_text(MODEL)
        Path("weighted.toml").write_text(MODEL + 'weights = "w.npy"\n')
        Path("d.npy").write_bytes(b"")
        assert offenders([(command, name, what) for what in BAD], check) == []


def test_click_checks_no_path() -> None:
    """It would stop at the first file, before the others are scored, and in its own words."""
    for command in (keygen, profile, encrypt, match, reveal):
        given = [option for option in command.params if option.name != "trusted"]  # no file that it reads
        paths = [option.type for option in given if isinstance(option.type, click.Path)]
        assert paths
        for path in paths:
            checks = (path.exists, path.readable, path.writable, not path.file_okay, not path.dir_okay)
            assert not any(checks), command.name


def test_an_output_that_cannot_be_replaced_is_refused_before_any_work(
    fresh: Callable[[], Place], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(case: tuple[str, str]) -> None:
        command, what = case
        monkeypatch.chdir(fresh().root)
        for read in ("K/public.key", "b.json", "p1.json", "d.npy"):
            Path(read).unlink(missing_ok=True)  # the output is refused first, so these are never read
        words = COMMANDS[command]
        path = Path(words[-1])
        put(path, what)
        code, _, err = securefl(capfd, *words)
        assert code == 1
        assert err.startswith(f"securefl: Expected a regular file or nothing at {path}, got a")
        assert ours(err)

    writing = ("match", "encrypt", "encrypt a baseline", "profile")
    assert offenders(product(writing, ("a folder", "a pipe", "a broken link", "a device")), check) == []
