"""The commands under `--params pads` and `pads-128`, as three people would run them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.matching_place import CLIENTS, Place, kl, write

from securefl.accounting.ledger import Ledger, Terms
from securefl.commands.main import cli

TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)
OTHER = ([0.5, 0.5, 0.0], [1.0, 1.0, 1.0])


def said(command: str, *words: object) -> tuple[str, str, int]:
    """Standard output, standard error and exit code."""
    done = CliRunner().invoke(cli, [command, *map(str, words)])
    return done.stdout, done.stderr, done.exit_code


def revealed(place: Place) -> tuple[dict[str, dict[str, float]], int]:
    keys = ("--secret", place.root / "K/secret.key", "--evaluator", place.root / "V/evaluator.pub")
    told, _, code = said("reveal", *keys, place.root / "scores.enc", "--json")
    return json.loads(told), code


def test_the_same_scores_again_count_once_and_are_released_once(place: Place) -> None:
    first = place.reveal("--json")
    place.match()  # the same requests, sealed anew
    assert place.reveal("--json") == first
    with Ledger(place.root / "K/ledger.sqlite", TERMS) as ledger:
        assert [(row[0], row[7]) for row in ledger.rows()] == [("p1", "committed"), ("p2", "committed")]
        assert ledger.epsilon("p1", "key-holder") == np.inf
        assert ledger.epsilon("p1", "server") == 0.0


def test_a_file_is_matched_with_one_baseline_over_processes(place: Place) -> None:
    write(place.root / "b.json", OTHER)
    told = place.match(code=2)
    assert told.count("matched with no other baseline before") == 2
    place.encrypt("p1")
    told = place.match(code=3)
    assert "p1.enc -> p1" in told
    assert re.search(r"p2\.enc refused: .*matched with no other baseline before", told)
    (record,) = (place.root / "V").glob("matched-*.sqlite")
    assert record.stat().st_mode & 0o077 == 0


def test_a_second_request_for_a_file_is_refused_after_reveal_was_run_before(place: Place) -> None:
    """An evaluator without its record sends one; the key holder's record is in its folder."""
    place.reveal()
    for path in (place.root / "V").glob("matched-*"):
        path.unlink()
    write(place.root / "b.json", OTHER)
    place.encrypt("p2")
    place.match()
    found, code = revealed(place)
    assert code == 1
    assert list(found["scores"]) == ["p2"]
    assert "a profile is scored once" in str(found["refused"]["p1"])


def test_a_damaged_record_of_the_evaluator_stops_the_match_with_its_name(place: Place) -> None:
    (record,) = (place.root / "V").glob("matched-*.sqlite")
    record.write_bytes(b"no database")
    told = place.match(code=1)
    assert f"{record} is damaged" in told
    assert "have profiles under pads encrypted again" in told


def test_the_cap_counts_files(tmp_path: Path) -> None:
    place = Place(tmp_path, "--params", "pads-128", openings=2)
    write(tmp_path / "p3.json", OTHER)
    assert "one match takes at most 2 such profiles" in place.encrypt("p3")
    told = place.match("p1.enc", "p2.enc", "p3.enc", code=1)
    assert "at most 2 profiles in one match (the key was made with --openings 2), got 3" in told
    assert not (tmp_path / "scores.enc").exists()
    place.match()
    assert set(revealed(place)[0]["scores"]) == {"p1", "p2"}
    place.match("p1.enc", "p3.enc")
    found, code = revealed(place)
    assert code == 1
    assert list(found["scores"]) == ["p1"]
    assert "used up" in str(found["refused"]["p3"])


@pytest.mark.parametrize("name", ["p1.enc", "scores.enc"])
def test_every_flipped_byte_is_refused_by_name(place: Place, name: str) -> None:
    raw = (place.root / name).read_bytes()
    for at in range(0, len(raw), 97):
        (place.root / name).write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        if name == "p1.enc":
            assert "p1.enc refused: " in place.match(code=3)
        else:
            assert "scores.enc" in place.reveal(code=1)
    (place.root / name).write_bytes(raw)
    place.match()
    assert len(revealed(place)[0]["scores"]) == 2, "nothing was spent"


# A declared baseline ----------------------------------------------------------------------------------


@pytest.mark.parametrize("params", ["pads", "pads-128"])
def test_a_baseline_is_declared_and_no_other_is_scored(place: Place, params: str) -> None:
    assert "for key holder" in place.declare("--params", params, "--variant", "mean-only")
    place.options = ("--declared", str(place.root / "declared.pub"))
    for label in CLIENTS:
        place.encrypt(label)
    place.match(more=place.options)
    first = (place.root / "scores.enc").read_bytes()
    write(place.root / "b.json", OTHER)
    assert "the baseline that was declared to the clients" in place.match(code=1)
    assert (place.root / "scores.enc").read_bytes() == first
    found = json.loads(place.reveal("--json"))
    for label, score in found["scores"].items():
        assert abs(score - kl(label)) <= found["error_bound"] < 1e-3
    assert "got flags beside it" in place.encrypt("p1", "--profile", "--params", "pads", code=2)


def test_declarations_that_are_none_are_refused(place: Place) -> None:
    place.declare("--params", "pads")
    raw = (place.root / "declared.pub").read_bytes()
    place.options = ("--declared", str(place.root / "declared.pub"))
    for spoilt in (raw[:-1], b"", b"text", (place.root / "p1.enc").read_bytes()):
        (place.root / "declared.pub").write_bytes(spoilt)
        assert "declared.pub" in place.encrypt("p1", code=1)
    (place.root / "declared.pub").unlink()
    assert "declared.pub" in place.encrypt("p1", code=1)
    told = place.declare("--params", "pads", "--declared", place.root / "p1.enc", code=2)
    assert "No such option" in told
