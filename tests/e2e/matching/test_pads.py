"""The commands under `--params pads` and `pads-128`, as three people would run them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.every import every
from support.matching_place import CLIENTS, Place, call, kl, write

from securefl.accounting.ledger import Ledger, Terms
from securefl.commands.main import cli
from securefl.matching import Evaluator, document

TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)
OTHER = ([0.5, 0.5, 0.0], [1.0, 1.0, 1.0])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A matching under pads whose scores are not revealed yet; copied before it is spoilt."""
    place = Place(tmp_path_factory.mktemp("pads"), "--params", "pads")
    place.match()
    return place


@pytest.fixture
def padded(finished: Place, tmp_path: Path) -> Place:
    shutil.copytree(finished.root, tmp_path / "m")
    copy = object.__new__(Place)
    copy.root, copy.options = tmp_path / "m", finished.options
    return copy


def said(command: str, *words: object) -> tuple[str, str, int]:
    """Standard output, standard error and exit code."""
    done = CliRunner().invoke(cli, [command, *map(str, words)])
    return done.stdout, done.stderr, done.exit_code


def revealed(place: Place) -> tuple[dict[str, dict[str, float]], int]:
    keys = ("--secret", place.root / "K/secret.key", "--evaluator", place.root / "V/evaluator.pub")
    told, _, code = said("reveal", *keys, place.root / "scores.enc", "--json")
    return json.loads(told), code


@every("variant", ["full", "mean-only"])
@every("params", ["pads", "pads-128"])
def test_scores_by_name_within_a_bound_that_always_holds(variant: str, params: str, tmp_path: Path) -> None:
    place = Place(tmp_path, "--variant", variant, "--params", params)
    told = place.encrypt("p1")
    bound = re.findall(r"all 1000 scores of this key within (\S+)\n", told)
    assert "probability" not in told
    place.match()
    found = json.loads(place.reveal("--json"))
    assert set(found) == {"scores", "error_bound"}
    assert list(found["scores"]) == ["p1", "p2"]
    for label, score in found["scores"].items():
        assert abs(score - kl(label)) <= found["error_bound"] <= 1.1 * float(bound[0]) < 1e-3
    assert "probability" not in place.reveal()


def test_a_key_of_pads_alone_is_small_and_takes_no_ciphertext(padded: Place, tmp_path: Path) -> None:
    call("keygen", "--role", "key-holder", "--params", "pads", "--out", tmp_path / "K")
    assert (tmp_path / "K/public.key").stat().st_size < 600
    assert (tmp_path / "K/secret.key").stat().st_size < 600
    assert (tmp_path / "K/secret.key").stat().st_mode & 0o077 == 0
    shutil.rmtree(padded.root / "K")
    shutil.copytree(tmp_path / "K", padded.root / "K")
    for label in CLIENTS:
        padded.encrypt(label)
    padded.match()
    assert abs(json.loads(padded.reveal("--json"))["scores"]["p1"] - kl("p1")) < 1e-3
    padded.options = ("--params", "strong-encrypted")
    assert "one for pads alone" in padded.encrypt("p1", code=1)
    told = call("keygen", "--role", "evaluator", "--params", "pads", "--out", tmp_path / "V", code=2)
    assert "for the role key-holder alone" in told


def test_the_same_scores_again_count_once_and_are_released_once(padded: Place) -> None:
    first = padded.reveal("--json")
    padded.match()  # the same requests, sealed anew
    assert padded.reveal("--json") == first
    with Ledger(padded.root / "K/ledger.sqlite", TERMS) as ledger:
        assert [(row[0], row[7]) for row in ledger.rows()] == [("p1", "committed"), ("p2", "committed")]
        assert ledger.epsilon("p1", "server") == 0.0


def test_a_file_is_matched_with_one_baseline_over_processes(padded: Place) -> None:
    write(padded.root / "b.json", OTHER)
    told = padded.match(code=2)
    assert told.count("matched with no other baseline before") == 2
    padded.encrypt("p1")
    told = padded.match(code=3)
    assert "p1.enc -> p1" in told
    assert re.search(r"p2\.enc refused: .*matched with no other baseline before", told)
    (record,) = (padded.root / "V").glob("matched-*.sqlite")
    assert record.stat().st_mode & 0o077 == 0


def test_a_second_request_for_a_file_is_refused_after_reveal_was_run_before(padded: Place) -> None:
    """An evaluator without its record sends one; the key holder's record is in its folder."""
    padded.reveal()
    for path in (padded.root / "V").glob("matched-*"):
        path.unlink()
    write(padded.root / "b.json", OTHER)
    padded.encrypt("p2")
    padded.match()
    found, code = revealed(padded)
    assert code == 1
    assert list(found["scores"]) == ["p2"]
    assert "a profile is scored once" in str(found["refused"]["p1"])


def test_lost_counts_and_mixed_folders_are_noticed(padded: Place) -> None:
    padded.reveal()
    (counted,) = (padded.root / "K").glob("openings-*.sqlite")
    saved = counted.read_bytes()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{counted}{suffix}").unlink(missing_ok=True)
    assert "the count is lost" in padded.reveal(code=1)
    for path in (padded.root / "K").glob("ledger.sqlite*"):
        path.unlink()
    for suffix in ("-wal", "-shm"):
        Path(f"{counted}{suffix}").unlink(missing_ok=True)
    counted.write_bytes(saved)
    assert "The first ledger was lost or replaced" in padded.reveal(code=1)


def test_a_damaged_record_of_the_evaluator_stops_the_match_with_its_name(padded: Place) -> None:
    (record,) = (padded.root / "V").glob("matched-*.sqlite")
    record.write_bytes(b"no database")
    told = padded.match(code=1)
    assert f"{record} is damaged" in told
    assert "have profiles under pads encrypted again" in told


def test_the_cap_counts_files(tmp_path: Path) -> None:
    call("keygen", "--role", "key-holder", "--out", tmp_path / "K", "--openings", 2, "--params", "pads")
    call("keygen", "--role", "evaluator", "--out", tmp_path / "V")
    place = object.__new__(Place)
    place.root, place.options = tmp_path, ("--params", "pads-128")
    for label, values in (*CLIENTS.items(), ("b", OTHER), ("p3", OTHER)):
        write(tmp_path / f"{label}.json", values)
        if label != "b":
            assert "one match takes at most 2 such profiles" in place.encrypt(label)
    assert "at most 2 profiles in one match" in place.match("p1.enc", "p2.enc", "p3.enc", code=1)
    place.match()
    assert set(revealed(place)[0]["scores"]) == {"p1", "p2"}
    place.match("p1.enc", "p3.enc")
    found, code = revealed(place)
    assert code == 1
    assert list(found["scores"]) == ["p1"]
    assert "used up" in str(found["refused"]["p3"])


def test_the_words_must_be_the_same_on_all_sides(padded: Place) -> None:
    padded.options = ("--params", "pads-128")
    padded.encrypt("p2")
    told = padded.match(more=("--params", "pads"), code=3)
    assert "p2.enc refused: Expected the matched options, got another parameters" in told
    assert "Expected the same options of all profiles" in padded.match(code=2)
    assert "use strong-encrypted" in padded.encrypt("b", "--baseline", code=1)


def test_another_evaluators_file_and_scores_are_refused(padded: Place) -> None:
    other = Evaluator.generate()
    secret, public = other.to_documents()
    document.write(padded.root / "other.key", secret, secret=True)
    document.write(padded.root / "other.pub", public)
    keys = ("--public", padded.root / "K/public.key", "--evaluator", padded.root / "other.key")
    more = ("--baseline", padded.root / "b.json", padded.root / "p1.enc", "-o", padded.root / "s.enc")
    assert "that of another evaluator" in call("match", *keys, *more, code=2)
    keys = ("--secret", padded.root / "K/secret.key", "--evaluator", padded.root / "other.pub")
    assert "scores of this evaluator" in call("reveal", *keys, padded.root / "scores.enc", code=1)


@pytest.mark.parametrize("name", ["p1.enc", "scores.enc"])
def test_every_flipped_byte_is_refused_by_name(padded: Place, name: str) -> None:
    raw = (padded.root / name).read_bytes()
    for at in range(0, len(raw), 97):
        (padded.root / name).write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        if name == "p1.enc":
            assert "p1.enc refused: " in padded.match(code=3)
        else:
            assert "scores.enc" in padded.reveal(code=1)
    (padded.root / name).write_bytes(raw)
    padded.match()
    assert len(revealed(padded)[0]["scores"]) == 2, "nothing was spent"


# A declared baseline ----------------------------------------------------------------------------------


def declared(place: Place, *flags: object, code: int = 0) -> str:
    keys = ("--public", place.root / "K/public.key", "--evaluator", place.root / "V/evaluator.key")
    more = ("--baseline", place.root / "b.json", "-o", place.root / "declared.pub")
    return call("declare", *keys, *more, *flags, code=code)


@pytest.mark.parametrize("params", ["pads", "pads-128"])
def test_a_baseline_is_declared_and_no_other_is_scored(padded: Place, params: str) -> None:
    assert "for key holder" in declared(padded, "--params", params, "--variant", "mean-only")
    padded.options = ("--declared", str(padded.root / "declared.pub"))
    for label in CLIENTS:
        padded.encrypt(label)
    padded.match(more=padded.options)
    first = (padded.root / "scores.enc").read_bytes()
    write(padded.root / "b.json", OTHER)
    assert "the baseline that was declared to the clients" in padded.match(code=1)
    assert (padded.root / "scores.enc").read_bytes() == first
    found = json.loads(padded.reveal("--json"))
    for label, score in found["scores"].items():
        assert abs(score - kl(label)) <= found["error_bound"] < 1e-3
    assert "got flags beside it" in padded.encrypt("p1", "--profile", "--params", "pads", code=2)


def test_declarations_that_are_none_are_refused(padded: Place) -> None:
    declared(padded, "--params", "pads")
    raw = (padded.root / "declared.pub").read_bytes()
    padded.options = ("--declared", str(padded.root / "declared.pub"))
    for spoilt in (raw[:-1], b"", b"text", (padded.root / "p1.enc").read_bytes()):
        (padded.root / "declared.pub").write_bytes(spoilt)
        assert "declared.pub" in padded.encrypt("p1", code=1)
    (padded.root / "declared.pub").unlink()
    assert "declared.pub" in padded.encrypt("p1", code=1)
    told = declared(padded, "--params", "pads", "--declared", padded.root / "p1.enc", code=2)
    assert "Leave it out" in told
