"""Limits that would fail at `match` are said before, at `encrypt`, with the flag and its value."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.every import every
from support.matching_place import Place, call, write

from securefl.core.errors import ConfigError, DataError
from securefl.matching import (
    Anchor,
    Bounds,
    ClientKey,
    Evaluator,
    KeyHolder,
    Options,
    Profile,
    Variant,
    document,
)
from securefl.matching.options import LONGEST

NARROW = Bounds(mean=1, variance_low=0.9, variance_high=1, weight=0.1)
"""So narrow that any length has room: what refuses a profile is the size of its file."""


@pytest.fixture(scope="module")
def parties() -> tuple[KeyHolder, Evaluator]:
    return KeyHolder.generate(openings=10, parameters="strong"), Evaluator.generate()


def flat(length: int) -> Profile:
    return Profile(np.zeros(length), np.ones(length))


# Room for the scores -----------------------------------------------------------------------------------


def refused(place: Place, length: int, *flags: str) -> str:
    numbers = [0.0] * length, [1.0] * length
    write(place.root / "long.json", numbers)
    (place.root / "long.enc").unlink(missing_ok=True)
    told = place.encrypt("long", "--profile", *flags, code=1)
    assert not (place.root / "long.enc").exists()
    return told


@pytest.mark.parametrize(("params", "length"), [("strong-encrypted", 10_000), ("compact", 20_000)])
def test_scores_that_would_wrap_are_refused_with_a_value_that_fits(
    place: Place, params: str, length: int
) -> None:
    told = refused(place, length, "--params", params)
    assert f"scores of {length:,} elements fit --params {params} and a key of --openings 1000, got" in told
    for flag in ("--mean-bound", "--variance-low", "--variance-high", "--weight-bound"):
        assert re.search(rf"{flag} [\d.e-]+", told), flag
    fixes = re.findall(r"(--[a-z]+-bound [\d.e+]+) or less", told)
    assert [fix.split()[0] for fix in fixes] == ["--weight-bound", "--mean-bound"]
    assert "fewer --openings" not in told  # no key of fewer openings would help
    for fix in fixes:  # what the message says is true
        flags = ("--params", params, *fix.split())
        if params == "strong-encrypted":
            place.encrypt("long", "--profile", *flags)
        else:  # there is room, and then a declaration is missing
            assert "a declared baseline under --params compact" in place.encrypt(
                "long", "--profile", *flags, code=1
            )


def test_a_key_of_too_many_openings_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path, openings=2**40)
    narrow = ("--mean-bound", "0.1", "--variance-low", "1e-12", "--variance-high", "0.0013")
    told = refused(place, 100, "--params", "compact", *narrow, "--weight-bound", "130000")
    assert f"a key of --openings {2**40}, got" in told
    assert ", or a key of fewer --openings" in told
    # And one that fits is told its error, however many scores that is over.
    told = place.encrypt("p1", "--profile", "--params", "strong-encrypted")
    assert re.search(r"all 1099511627776 scores of this key within [\d.e-]+,", told)


# The file of a profile ---------------------------------------------------------------------------------


def test_a_profile_whose_file_is_too_long_is_refused_before_it_is_encrypted(
    parties: tuple[KeyHolder, Evaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, evaluator = parties
    monkeypatch.setattr("securefl.linear.encryptor.Encryptor.encrypt", _unreached)
    options = Options(parameters="strong-encrypted", variant=Variant.MEAN_ONLY, bounds=NARROW)
    with pytest.raises(ConfigError, match=r"67,108,864 .* 480,000"):
        flat(480_000).encrypt(holder.public, evaluator.public, options=options)
    with pytest.raises(ConfigError, match="--variant mean-only"):
        flat(480_000).encrypt(holder.public, evaluator.public, options=options)
    compact = Options(parameters="compact", bounds=NARROW)
    with pytest.raises(ConfigError, match=r"1,048,576 .* 1,048,577"):
        flat(LONGEST + 1).encrypt(holder.public, evaluator.public, options=compact)


def _unreached(*_: object) -> bytes:
    raise AssertionError("encrypted before it was checked")


def test_the_size_that_is_checked_is_that_of_the_file(parties: tuple[KeyHolder, Evaluator]) -> None:
    holder, evaluator = parties
    own = ClientKey.generate()
    signed = Options(parameters="compact", variant=Variant.MEAN_ONLY, declared="0" * 64)
    for options in (Options(), Options(parameters="strong-encrypted"), signed):
        sealed = flat(300).encrypt(holder.public, evaluator.public, options=options, label="x" * 200, own=own)
        size = len(sealed.to_document().to_bytes())
        counted = _counted(options, 300)
        assert size <= counted < size + 1100


def _counted(options: Options, length: int) -> int:
    """The size that `require_file` counts: the least limit that it accepts."""
    low, high = 0, 2**26
    with pytest.MonkeyPatch.context() as patched:
        while low < high:
            middle = (low + high) // 2
            limits = {**document.LIMITS, "encrypted-profile": middle}
            patched.setattr("securefl.matching.options.LIMITS", limits)
            try:
                options.require_file(length, 10)
                high = middle
            except ConfigError:
                low = middle + 1
    return low


def test_an_anchor_too_long_for_a_header_is_refused_by_its_flag(
    parties: tuple[KeyHolder, Evaluator],
) -> None:
    """It was written, and every evaluator then called the file damaged."""
    holder, evaluator = parties
    length = 500_000
    anchor = Anchor(np.full(length, 1 / 3), np.full(length, 2**0.5))
    options = Options(parameters="compact", bounds=NARROW, anchor=anchor)
    with pytest.raises(ConfigError, match=r"--anchor .* 16,777,216"):
        flat(length).encrypt(holder.public, evaluator.public, options=options)


def test_no_document_is_written_that_cannot_be_read() -> None:
    for header in ({"label": "," * 2**20}, {"label": "x" * 2**24}):
        with pytest.raises(DataError, match=r"16,777,216 .* 1,048,576"):
            document.Document("encrypted-profile", header, b"").to_bytes()


# One match ---------------------------------------------------------------------------------------------


@every("params", ["strong-encrypted", "compact"])
def test_as_many_scores_as_are_promised_fit_in_their_file(params: str) -> None:
    options = Options(parameters=params)  # type: ignore[arg-type]
    assert options.most_at_once(100, 1000) == 1000
    many = options.most_at_once(100, 2**30)
    files = options._files(100, 2**30)
    room = document.LIMITS["encrypted-scores"] - document.LARGEST_HEADER - files.head_bytes
    assert many * files.item_bytes <= room < (many + 1) * files.item_bytes


def test_more_scores_than_a_file_holds_are_refused_before_they_are_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {**document.LIMITS, "encrypted-scores": 2**24 + 200}
    monkeypatch.setattr("securefl.matching.options.LIMITS", limits)
    assert "one match takes at most 1 such profiles" in place.encrypt("p1")
    told = place.match(code=1)
    assert "at most 1 profiles in one match (a file of scores holds no more; the key has --openings" in told


@pytest.mark.parametrize("params", ["strong-encrypted", "pads", "compact"])
@pytest.mark.parametrize("variant", ["full", "mean-only"])
def test_a_baseline_of_large_weights_is_refused_with_a_bound_that_holds(
    params: str, variant: str, place: Place
) -> None:
    flags = ("--params", params, "--variant", variant)
    write(place.root / "b.json", ([300.0, 0.0, 0.0], [0.2, 1.0, 1.0]))
    more = ("--weight-bound", "3")
    if params == "compact":
        told = place.declare(*flags, *more, code=1)
    elif params == "strong-encrypted":
        told = place.encrypt("b", "--baseline", *flags, *more, code=1)
    else:
        for label in ("p1", "p2"):
            place.encrypt(label, "--profile", *flags, *more)
        told = place.match(code=1)
    assert "Expected a baseline of weights up to --weight-bound 3, got " in told
    needed = float(told.split("--weight-bound 3, got ")[1].split(". ")[0])
    assert f"got {needed:.4g}. Give" in told
    more = ("--weight-bound", f"{needed * 1.001}")
    for label in ("p1", "p2"):
        place.encrypt(label, "--profile", *flags, *more)
    baseline = "b.json"
    if params == "strong-encrypted":
        place.encrypt("b", "--baseline", *flags, *more)
        baseline = "b.enc"
    place.match(baseline=baseline)
    found = json.loads(place.reveal("--json"))
    assert len(found["scores"]) == 2


def test_a_baseline_whose_scores_wrap_is_refused_for_itself(place: Place) -> None:
    flags = ("--params", "compact", "--mean-bound", "1", "--variance-high", "1000", "--weight-bound", "100")
    write(place.root / "b.json", ([80_000.0, 0.0, 0.0], [800.0, 1.0, 1.0]))
    told = place.declare(*flags, code=1)
    assert "Expected a baseline whose scores fit --params compact, got one whose constant 4e+06 makes" in told
    assert "--weight-bound, or --params strong" in told


def test_variances_of_a_baseline_outside_are_told_by_flag(place: Place) -> None:
    write(place.root / "b.json", ([0.0, 0.0, 0.0], [5000.0, 1.0, 1.0]))
    said = "inside --variance-low 5.96046e-08 to --variance-high 512, got 1 that lie outside"
    assert said in place.match(code=1)
    assert said in place.encrypt("b", "--baseline", "--params", "strong-encrypted", code=1)


def test_an_anchor_of_another_length_is_told_by_flag(place: Place) -> None:
    write(place.root / "a.json", ([0.0], [1.0]))
    told = place.encrypt("p1", "--profile", "--anchor", place.root / "a.json", code=1)
    assert "Expected an --anchor of 3 elements, as the profile has, got 1" in told


@pytest.mark.filterwarnings("error")
def test_values_beyond_all_floats_are_clipped_in_silence(place: Place) -> None:
    write(place.root / "a.json", ([-1e308, 0.0, 0.0], [1e308, 1e-300, 1.0]))
    write(place.root / "far.json", ([1e308, 1e300, 0.0], [1e308, 1e308, 0.0]))
    told = place.encrypt("far", "--profile", "--anchor", place.root / "a.json")
    assert "values lay outside the bounds and were clipped" in told


@every("command", ["encrypt", "match"])
def test_help_states_the_defaults_in_force(command: str) -> None:
    told = " ".join(call(command, "--help").split())
    pads, compact, strong = (Options(parameters=word).bounds for word in ("pads", "compact", "strong"))
    for name in ("mean", "variance_high", "weight"):
        assert f"efault {getattr(pads, name):g}, compact {getattr(compact, name):g}" in told, name
    assert f", others {strong.weight:g}." in told
    assert pads.variance_low == compact.variance_low
    assert f"Default {pads.variance_low:.0e}." in told


@every("count", [0, -1, 2**40 + 1])
def test_a_number_of_openings_is_refused_by_its_flag(count: int, tmp_path: Path) -> None:
    words = ("keygen", "--role", "key-holder", "--out", tmp_path / "K", "--openings", count)
    assert f"Expected --openings from 1 to 1099511627776, got {count}" in call(*words, code=1)
    assert not (tmp_path / "K").exists()


def test_a_profile_too_long_for_encrypt_is_refused_where_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = '[model]\nkind = "mlp"\nhidden = [5]\nprofiled_layer = "fc1"\n[weights]\noutputs = 2\n'
    (tmp_path / "m.toml").write_text(model)
    np.save(tmp_path / "d.npy", np.ones((3, 4)))
    words = (
        "profile",
        "--data",
        tmp_path / "d.npy",
        "--model",
        tmp_path / "m.toml",
        "-o",
        tmp_path / "p.json",
    )
    monkeypatch.setattr("securefl.matching.profile_file.MOST_ELEMENTS", 14)
    assert "Expected at most 14 numbers in at most 16,777,216 bytes, got up to 15" in call(*words, code=1)
    assert not (tmp_path / "p.json").exists()
    monkeypatch.setattr("securefl.matching.profile_file.MOST_ELEMENTS", 15)
    call(*words)
