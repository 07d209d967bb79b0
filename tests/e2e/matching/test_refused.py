"""Every file of a matching that must be refused, by its name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
from support.matching_place import Place, call, use
from support.offenders import offenders

from securefl.accounting.ledger import Ledger, Terms
from securefl.core.errors import DataError
from securefl.matching import document

FILES = ("K/public.key", "V/evaluator.key", "V/evaluator.pub", "p1.enc", "scores.enc", "K/secret.key")
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda raw: raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :],
    "a bit of the header": lambda raw: raw[:40] + bytes([raw[40] ^ 1]) + raw[41:],
    "cut": lambda raw: raw[:-1],
    "cut to the first line": lambda raw: raw[: raw.index(b"\n") + 1],
    "longer": lambda raw: raw + b"\0",
    "empty": lambda raw: b"",
    "another version": lambda raw: raw.replace(b"securefl 8", b"securefl 4", 1),
    "text": lambda raw: b'{"mean": [1], "variance": [1]}',
}


def test_damaged_files_are_refused_by_name(fresh: Callable[[], Place]) -> None:
    def check(case: tuple[str, str]) -> None:
        (name, damage), place = case, fresh()
        path = place.root / name
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
        assert path.name in use(place, name)

    assert offenders(product(FILES, DAMAGE), check) == []


def test_mailed_files_may_be_renamed(place: Place) -> None:
    for name, other in (
        ("K/public.key", "key (1)"),
        ("V/evaluator.pub", "pub"),
        ("V/evaluator.key", "k"),
        ("p1.enc", "Fwd p1.enc.txt"),
    ):
        (place.root / name).rename(place.root / other)
    keys = ("--public", place.root / "key (1)", "--evaluator", place.root / "k")
    more = ("--baseline", place.root / "b.json", place.root / "Fwd p1.enc.txt", "-o", place.root / "s")
    call("match", *keys, *more)
    (place.root / "K/secret.key").rename(place.root / "K/mine")
    keys = ("--secret", place.root / "K/mine", "--evaluator", place.root / "pub")
    assert call("reveal", *keys, place.root / "s").startswith("p1  ")


def test_a_file_of_another_kind_is_refused(place: Place) -> None:
    def check(case: tuple[str, str]) -> None:
        name, other = case
        original = (place.root / name).read_bytes()
        shutil.copy(place.root / other, place.root / name)
        try:
            use(place, name)
        finally:
            (place.root / name).write_bytes(original)

    assert offenders(permutations(FILES, 2), check) == []


def resealed(path: Path, change: Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]) -> None:
    """Change a file as a forger would: with a checksum that fits again."""
    raw = path.read_bytes()
    kind = raw.split(b"\n")[0].split()[-1].decode()
    content = document.Document.from_bytes(raw, kind)
    header, body = change(dict(content.header), content.body)
    path.write_bytes(document.Document(kind, header, body).to_bytes())


def with_number(number: str) -> Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]:
    """A bound of this value; the header's JSON may hold what no double does."""
    return lambda h, b: ({**h, "bounds": {**h["bounds"], "mean": json.loads(number)}}, b)


FORGED: dict[str, tuple[str, Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]]] = {
    "label of a profile": ("p1.enc", lambda h, b: ({**h, "label": "p9"}, b)),
    "bounds of a profile": ("p1.enc", lambda h, b: ({**h, "bounds": {**h["bounds"], "mean": 8.0}}, b)),
    "length of a profile": ("p1.enc", lambda h, b: ({**h, "length": 2}, b)),
    "options that are none": ("p1.enc", lambda h, b: ({**h, "bounds": 7}, b)),
    "bounds of text": ("p1.enc", lambda h, b: ({**h, "bounds": {**h["bounds"], "mean": "64"}}, b)),
    "a bound left out": ("p1.enc", lambda h, b: ({**h, "bounds": {"mean": 64.0}}, b)),
    "no variant": ("p1.enc", lambda h, b: ({**h, "variant": []}, b)),
    "an endless length": ("p1.enc", lambda h, b: ({**h, "length": 2**60}, b)),
    "variant of a profile": ("p1.enc", lambda h, b: ({**h, "variant": "mean-only"}, b)),
    "sealed bytes": ("p1.enc", lambda h, b: (h, b[:50] + bytes([b[50] ^ 1]) + b[51:])),
    "sealed key": ("p1.enc", lambda h, b: (h, bytes(32) + b[32:])),
    "a huge integer": ("p1.enc", with_number("1" + "0" * 400)),
    "a huge bound": ("p1.enc", with_number("1e200")),
    "a huge anchor": (
        "p1.enc",
        lambda h, b: ({**h, "anchor": {"centre": [10**400] * 3, "scale": [1] * 3}}, b),
    ),
    "no body": ("p1.enc", lambda h, b: (h, b"")),
    "session of a profile": ("p1.enc", lambda h, b: ({**h, "session": "0" * 64}, b)),
    "labels of scores": ("scores.enc", lambda h, b: ({**h, "labels": ["p2", "p1"]}, b)),
    "one label": ("scores.enc", lambda h, b: ({**h, "labels": ["p1"]}, b)),
    "labels that are none": ("scores.enc", lambda h, b: ({**h, "labels": "p1"}, b)),
    "scores": ("scores.enc", lambda h, b: (h, b[:100] + bytes([b[100] ^ 1]) + b[101:])),
    "scores in another order": (
        "scores.enc",
        lambda h, b: (h, b[(len(b) - 64) // 2 : -64] + b[: (len(b) - 64) // 2] + b[-64:]),
    ),
    "unsigned scores": ("scores.enc", lambda h, b: (h, b[:-64] + bytes(64))),
    "a public key": ("K/public.key", lambda h, b: (h, b[:100] + bytes([b[100] ^ 1]) + b[101:])),
    "a cap": ("K/public.key", lambda h, b: ({**h, "openings": 10**6}, b)),
    "a cap of text": ("K/public.key", lambda h, b: ({**h, "openings": "9"}, b)),
    "an evaluator": ("V/evaluator.pub", lambda h, b: ({**h, "sealing": "00" * 32}, b)),
    "an evaluator's key": ("V/evaluator.key", lambda h, b: (h, b[:-1] + bytes([b[-1] ^ 1]))),
    "a secret key": ("K/secret.key", lambda h, b: (h, b[:-1] + bytes([b[-1] ^ 1]))),
}


def test_forged_files_are_refused(fresh: Callable[[], Place]) -> None:
    def check(what: str) -> None:
        (name, change), place = FORGED[what], fresh()
        resealed(place.root / name, change)
        use(place, name)

    assert offenders(FORGED, check) == []


def test_foreign_sessions_and_evaluators_are_refused(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other")
    other.match()
    for name in (
        "K/public.key",
        "K/secret.key",
        "V/evaluator.key",
        "V/evaluator.pub",
        "p1.enc",
        "scores.enc",
    ):
        original = (place.root / name).read_bytes()
        shutil.copy(other.root / name, place.root / name)
        if name == "V/evaluator.pub":
            assert "another evaluator" in place.reveal(code=1)
        else:
            told = use(place, name, code=1 if name in ("K/secret.key", "scores.enc") else 2)
            assert "session" in told or "another evaluator" in told
        (place.root / name).write_bytes(original)


def test_no_input_and_no_file_of_another_kind_is_overwritten(place: Place) -> None:
    keys = ("--public", place.root / "K/public.key", "--evaluator", place.root / "V/evaluator.key")
    # A key for a baseline: the output is refused before any input is read, since a match may spend a profile.
    more = ("--baseline", place.root / "K/public.key", place.root / "p1.enc", "-o")
    for name, said in (
        ("p1.enc", "an input. Choose another"),
        *((other, "Choose another path") for other in ("K/secret.key", "V/evaluator.pub", "p1.json")),
    ):
        before = (place.root / name).read_bytes()
        assert said in call("match", *keys, *more, place.root / name, code=1)
        assert (place.root / name).read_bytes() == before


def _stop(*_: object) -> None:
    raise DataError("Stopped.")


def test_a_reveal_that_stopped_half_way_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between reserving, opening and committing: the next one gives the score and charges once."""
    terms = Terms(unit="record", adjacency="replace-one", delta=1e-5)
    with monkeypatch.context() as stopped:
        stopped.setattr(Ledger, "open", _stop)
        place.reveal(code=1)
    with Ledger(place.root / "K/ledger.sqlite", terms) as ledger:
        assert [row[7] for row in ledger.rows()] == ["reserved"]
    first = place.reveal("--json")
    assert place.reveal("--json") == first
    with Ledger(place.root / "K/ledger.sqlite", terms) as ledger:
        assert [row[7] for row in ledger.rows()] == ["committed", "committed"]


@pytest.mark.parametrize("which", ["ledger.sqlite", "openings-*.sqlite"])
def test_a_deleted_record_beside_the_key_is_noticed(which: str, place: Place) -> None:
    place.reveal()
    for path in (place.root / "K").glob(which + "*"):
        path.unlink()
    assert re.search("was lost or replaced|the count is lost", place.reveal(code=1))
