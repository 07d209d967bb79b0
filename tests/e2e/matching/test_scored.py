"""Which profiles are scored, by which options, and what is said of their values."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support.matching_place import BASE, CLIENTS, Place, kl, use, write
from support.offenders import offenders

from securefl.matching import Evaluator, KeyHolder, Options, Profile
from securefl.matching.profiles import Bounds

LOOSE = Options(parameters="strong-encrypted", bounds=Bounds(mean=16, weight=1e6))


# What is scored, and what is not --------------------------------------------------------------------


def test_one_bad_profile_costs_nobody_else_a_score(place: Place) -> None:
    """Junk, another's session, another length: each is named with its reason, the others are scored."""
    other = Place(place.root / "other")
    shutil.copy(other.root / "p1.enc", place.root / "foreign.enc")
    (place.root / "junk\x1b[2J.enc").write_bytes(b"junk")
    write(place.root / "short.json", ([0.0], [1.0]))
    place.encrypt("short")
    told = place.match("foreign.enc", "p1.enc", "junk\x1b[2J.enc", "p2.enc", "short.enc", code=3)
    assert f"{place.root}/p1.enc -> p1\n{place.root}/p2.enc -> p2\n" in told
    assert "foreign.enc refused: Expected an encrypted-profile of this key holder's session" in told
    assert "short.enc refused: Expected 3 elements as in the baseline, got 1" in told
    assert "a file that securefl did not write" in told
    assert "\x1b" not in told
    assert ": 2 scores for key holder" in told
    found = json.loads(place.reveal("--json"))["scores"]
    assert list(found) == ["p1", "p2"]
    assert abs(found["p2"] - kl("p2")) < 1e-3


def test_a_swapped_or_renamed_file_is_listed_by_its_label(place: Place) -> None:
    (place.root / "p1.enc").rename(place.root / "x")
    (place.root / "p2.enc").rename(place.root / "p1.enc")
    told = place.match("x", "p1.enc")
    assert f"{place.root}/x -> p1\n{place.root}/p1.enc -> p2\n" in told
    found = json.loads(place.reveal("--json"))["scores"]
    assert abs(found["p1"] - kl("p1")) < 1e-3


@pytest.mark.parametrize("order", [("p1.enc", "p2.enc", "p3.enc"), ("p2.enc", "p3.enc", "p1.enc")])
def test_options_come_from_the_evaluator_or_from_all_and_never_from_the_first(
    place: Place, order: tuple[str, ...]
) -> None:
    write(place.root / "p3.json", BASE)
    place.encrypt("p3")
    place.encrypt("p2", "--profile", "--variant", "mean-only")
    told = place.match(*order, code=2)
    assert told.count("State the options") == 3
    assert "p2.enc refused: Expected the same options of all profiles, got variant 'mean-only' here" in told
    told = place.match(*order, more=("--variant", "full"), code=3)
    assert "p2.enc refused: Expected the matched options, got another variant" in told
    assert list(json.loads(place.reveal("--json"))["scores"]) == [n[:2] for n in order if n != "p2.enc"]
    told = place.match(*order, more=("--variant", "mean-only"), code=3)
    assert "p1.enc refused: Expected the matched options, got another variant" in told
    assert list(json.loads(place.reveal("--json"))["scores"]) == ["p2"]
    place.encrypt("p2", "--profile", "--mean-bound", 8)
    assert "another bounds" in place.match(*order, more=("--params", "pads"), code=3)


def test_an_anchor_is_given_to_match_as_to_encrypt(tmp_path: Path) -> None:
    anchor = write(tmp_path / "a.json", ([0.3, 0.0, 0.0], [1.7, 1.0, 1.0]))
    place = Place(tmp_path, "--anchor", str(anchor))
    place.match(more=place.options)
    assert "another anchor" in place.match(more=("--variant", "full"), code=2)


def test_an_encrypted_baseline_with_other_options_is_refused(place: Place) -> None:
    for label in CLIENTS:
        place.encrypt(label, "--profile", "--params", "strong-encrypted")
    place.encrypt("b", "--baseline", "--params", "strong-encrypted", "--mean-bound", 8)
    assert "a baseline that fits the profiles, got b" in place.match(baseline="b.enc", code=1)


# What is said of the values ------------------------------------------------------------------------


def test_floors_and_clips_are_counted_and_said(place: Place) -> None:
    write(place.root / "far.json", ([1000.0, -1000.0, 0.0], [0.0, 1e-9, 9999.0]))
    told = place.encrypt("far")
    assert "3 values lay outside" in told
    assert "2 variances were below 1e-06" in told
    assert "clipped" not in place.encrypt("p1")
    assert "below" not in place.encrypt("p1")
    write(place.root / "b.json", ([0.0, 0.0, 0.0], [1.0, 0.0, 1.0]))
    told = place.match("p1.enc", "p2.enc", more=("--weight-bound", 1e6), code=2)
    for label in ("p1", "p2"):
        place.encrypt(label, "--profile", "--weight-bound", 1e6)
    assert "1 variances were below 1e-06" in place.match()


def test_floors_and_clips_are_counted_in_python() -> None:
    keys, server = KeyHolder.generate(openings=10, parameters="strong"), Evaluator.generate()
    far = Profile(np.array([1000.0, 0.0]), np.array([0.0, 1.0]))
    sealed = far.encrypt(keys.public, server.public)
    assert (sealed.clipped, sealed.floored) == (1, 1)
    flat = Profile(np.zeros(2), np.array([0.0, 1.0]))
    assert flat.encrypt_baseline(keys.public, server.public, options=LOOSE).floored == 1
    assert flat.encrypt(keys.public, server.public, options=LOOSE).floored == 1
    loose = Options(parameters="pads-128", bounds=LOOSE.bounds)
    padded = flat.encrypt(keys.public, server.public, options=loose)
    assert server.match(keys.public, flat, [padded]).floored == 1
    near = Profile(np.zeros(2), np.full(2, 1e-6)).encrypt(keys.public, server.public)
    assert (near.clipped, near.floored) == (0, 0)
    assert set(sealed.header) == set(near.header), "the evaluator does not learn it"


@pytest.mark.parametrize("params", ["strong", "compact"])
def test_the_error_to_expect_is_said_before_anything_is_sent(place: Place, params: str) -> None:
    told = [place.encrypt(label, "--profile", "--params", params) for label in CLIENTS]
    (expected,) = {re.findall(r"all 1000 scores of this key within (\S+), except", line)[0] for line in told}
    place.match()
    bound = json.loads(place.reveal("--json"))["error_bound"]
    assert bound <= float(expected) * 1.01 <= 2 * bound


NO_PROFILES = (
    "",
    "[]",
    "{}",
    '{"mean": [1], "variance": [-1]}',
    '{"mean": [1], "variance": [1, 2]}',
    '{"mean": "x", "variance": []}',
    '{"mean": [NaN], "variance": [1]}',
    '{"mean": [1e999], "variance": [1]}',
    '{"mean": [[1]], "variance": [[1]]}',
    '{"mean": ["1"], "variance": ["1"]}',
    '{"mean": [true], "variance": [1]}',
    '{"mean": [1' + "0" * 400 + '], "variance": [1]}',
    "[" * 100_000,
)


def test_profiles_that_are_none_are_refused(place: Place) -> None:
    def check(text: str) -> None:
        (place.root / "p1.json").write_text(text)
        assert "p1.json" in place.encrypt("p1", code=1)

    assert offenders(NO_PROFILES, check) == []


def test_headers_hold_no_numbers_that_are_none(fresh: Callable[[], Place]) -> None:
    """They pass Python's JSON, and could not be written again to check a signature."""

    def check(case: tuple[str, str]) -> None:
        (name, word), place = case, fresh()
        raw = (place.root / name).read_bytes()[:-32]
        forged = raw.replace(b"{", b'{"a":' + word.encode() + b",", 1)
        (place.root / name).write_bytes(forged + hashlib.sha256(forged).digest())
        assert "header" in use(place, name)

    assert offenders(product(("p1.enc", "scores.enc"), ("NaN", "Infinity", "1e999")), check) == []


def test_a_baseline_outside_the_bounds_is_refused_not_clipped(place: Place) -> None:
    write(place.root / "b.json", ([0.0, 0.0, 0.0], [5000.0, 1.0, 1.0]))
    assert "that lie outside the declared bounds" in place.match(code=1)
    assert "that lie outside the declared bounds" in place.encrypt(
        "b", "--baseline", "--params", "strong-encrypted", code=1
    )


def test_names_that_cannot_be_labels_are_blamed_on_the_name(place: Place) -> None:
    shutil.copy(place.root / "p1.json", place.root / "a\nb.json")
    assert "got 'a\\nb'" in place.encrypt("a\nb", code=1)


def test_mean_only_takes_every_baseline_that_full_takes(tmp_path: Path) -> None:
    place = Place(tmp_path, "--variant", "mean-only", "--params", "pads-128")
    write(place.root / "b.json", ([0.0] * 3, [1 / 2000.0] * 3))  # weights of 1000, of at most 1024
    place.match()
    place.reveal("--json")
