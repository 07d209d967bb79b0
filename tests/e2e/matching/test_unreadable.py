"""Files that cannot be opened or read: refused by name and in our words, while others are scored."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from support.bad_files import BAD, put
from support.command_line import securefl
from support.matching_place import CLIENTS, Place, write
from support.offenders import offenders

CLICKS = ("Usage:", "Error:", "Try ", "Invalid value", "does not exist", "is a directory")
MODEL = '[model]\nkind = "mlp"\nhidden = [5]\nprofiled_layer = "fc1"\n[weights]\noutputs = 2\n'


def ours(err: str) -> bool:
    return not any(word in err for word in CLICKS)


def matched(place: Place, capfd: pytest.CaptureFixture[str], *files: str) -> tuple[int, str, str]:
    keys = ("--public", place.root / "K/public.key", "--evaluator", place.root / "V/evaluator.key")
    named = [place.root / name for name in files]
    out = place.root / "scores.enc"
    return securefl(capfd, "match", *keys, "--baseline", place.root / "b.json", *named, "-o", out)


def test_an_unreadable_profile_is_refused_by_name_and_the_others_are_scored(
    fresh: Callable[[], Place], capfd: pytest.CaptureFixture[str]
) -> None:
    def check(what: str) -> None:
        place = fresh()
        path = place.root / "p1.enc"
        said = put(path, what)
        code, out, err = matched(place, capfd, "p1.enc", "p2.enc")
        assert code == 3
        assert f"securefl: {path} refused: Expected " in err
        assert said in err
        assert ours(err)
        assert f"{place.root}/p2.enc -> p2\n" in out
        assert ": 1 scores for key holder" in out

    assert offenders(BAD, check) == []


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


def test_a_refusal_of_the_system_is_told_with_its_remedy(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
