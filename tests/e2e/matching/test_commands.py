"""The five commands on files, as three people would run them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.matching_place import BASE, CLIENTS, Place, call, kl, write

from securefl.accounting.ledger import Ledger, Terms
from securefl.commands.main import cli
from securefl.dp.moments import MeanVariance
from securefl.matching import Evaluator, KeyHolder, Profile
from securefl.matching.profiles import divergence


@pytest.mark.parametrize(
    ("variant", "params", "baseline"),
    [
        # Each word with each kind of baseline; the rest of the grid is slow.
        ("full", "strong", "b.json"),
        ("mean-only", "compact", "b.json"),
        ("mean-only", "strong-encrypted", "b.enc"),
        pytest.param("mean-only", "strong", "b.json", marks=pytest.mark.slow),
        pytest.param("full", "compact", "b.json", marks=pytest.mark.slow),
        pytest.param("full", "strong-encrypted", "b.enc", marks=pytest.mark.slow),
    ],
)
def test_scores_by_name_within_a_joint_bound(
    variant: str, params: str, baseline: str, tmp_path: Path
) -> None:
    place = Place(tmp_path, "--variant", variant, "--params", params)
    if baseline == "b.enc":
        place.encrypt("b", "--baseline")
    place.match(baseline=baseline)
    found = json.loads(place.reveal("--json"))
    assert set(found) == {"scores", "error_bound"}
    assert list(found["scores"]) == ["p1", "p2"]
    for label, score in found["scores"].items():
        assert abs(score - kl(label)) <= found["error_bound"] < 0.01


def test_strong_is_checked_and_needs_a_declaration_and_keys_of_clients(place: Place) -> None:
    for label in ("p1", "p2"):
        place.encrypt(label, "--profile", "--params", "strong")
    place.match()
    found = json.loads(place.reveal("--json"))
    for label, score in found["scores"].items():
        assert abs(score - kl(label)) <= found["error_bound"] < 1e-6
    (place.root / "C-p2/client.pub").unlink()
    told = place.reveal(code=1)
    assert "p2 refused" in told
    assert "client whose key was given" in told
    declared = ("--declared", place.root / "declared.pub")
    assert "keygen --role client" in place.encrypt("p1", "--profile", *declared, code=1)
    key = ("--key", place.root / "C-p1/client.key")
    assert "Leave it out" in place.encrypt("p1", "--profile", *key, code=2)
    assert "securefl declare" in place.encrypt("p1", "--profile", *key, "--params", "strong", code=1)
    assert "Use strong-encrypted" in place.match(baseline=_encrypted_baseline(place), code=1)


def _encrypted_baseline(place: Place) -> str:
    place.encrypt("b", "--baseline", "--params", "strong-encrypted")
    return "b.enc"


def test_names_are_those_of_the_profiles_not_of_the_files(place: Place) -> None:
    shutil.copy(place.root / "p1.json", place.root / "hospital.json")
    keys = ("--public", place.root / "K/public.key", "--evaluator", place.root / "V/evaluator.pub")
    call("encrypt", *keys, "--profile", place.root / "hospital.json", "-o", place.root / "x.enc")
    place.match("x.enc", "p2.enc")
    assert list(json.loads(place.reveal("--json"))["scores"]) == ["hospital", "p2"]


def test_secrets_are_their_owners_and_keys_are_not_overwritten(place: Place) -> None:
    place.reveal()
    for name in ("K/secret.key", "V/evaluator.key", "K/ledger.sqlite"):
        assert (place.root / name).stat().st_mode & 0o077 == 0, name
    assert "never overwritten" in call("keygen", "--role", "evaluator", "--out", place.root / "V", code=1)


def test_the_same_scores_again_count_once_and_are_released_once(place: Place) -> None:
    first = place.reveal("--json")
    assert place.reveal("--json") == first
    terms = Terms(unit="record", adjacency="replace-one", delta=1e-5)
    with Ledger(place.root / "K/ledger.sqlite", terms) as ledger:
        assert [(row[0], row[7]) for row in ledger.rows()] == [("p1", "committed"), ("p2", "committed")]
        assert ledger.epsilon("p1", "key-holder") == np.inf
        assert ledger.epsilon("p1", "server") == 0.0


def test_openings_are_capped_over_processes(tmp_path: Path) -> None:
    call("keygen", "--role", "key-holder", "--out", tmp_path / "K", "--openings", 3)
    call("keygen", "--role", "evaluator", "--out", tmp_path / "V")
    place = object.__new__(Place)
    place.root, place.options = tmp_path, ()
    for label, values in (*CLIENTS.items(), ("b", BASE)):
        write(tmp_path / f"{label}.json", values)
        if label != "b":
            place.encrypt(label)
    place.match()
    place.reveal()
    for label in CLIENTS:  # encrypted anew: another request
        place.encrypt(label)
    place.match()
    out = json.loads(
        CliRunner()
        .invoke(
            cli,
            [  # standard error carries the refusal
                "reveal",
                "--secret",
                str(tmp_path / "K/secret.key"),
                "--evaluator",
                str(tmp_path / "V/evaluator.pub"),
                str(tmp_path / "scores.enc"),
                "--json",
            ],
        )
        .stdout
    )
    assert list(out["scores"]) == ["p1"]
    assert "used up" in out["refused"]["p2"]
    assert "used up" in place.reveal(code=1)


def test_clipped_values_are_told(place: Place) -> None:
    write(place.root / "far.json", ([1000.0, 0.0, 0.0], [1.0, 1.0, 1.0]))
    assert "1 values lay outside" in place.encrypt("far")


def test_an_anchor_brings_far_profiles_into_the_bounds(tmp_path: Path) -> None:
    write(tmp_path / "a.json", ([1000.0, 0.0, 0.0], [1e4, 1.0, 1e-8]))
    call("keygen", "--role", "key-holder", "--out", tmp_path / "K")
    call("keygen", "--role", "evaluator", "--out", tmp_path / "V")
    place = object.__new__(Place)
    place.root, place.options = tmp_path, ("--anchor", str(tmp_path / "a.json"))
    own, base = ([1010.0, 0.1, 0.0], [9e3, 1.1, 1e-4]), ([990.0, 0.0, 0.0], [1e4, 1.0, 2e-4])
    write(tmp_path / "p1.json", own)
    write(tmp_path / "b.json", base)
    assert "clipped" not in place.encrypt("p1")
    place.match("p1.enc")
    found = json.loads(place.reveal("--json"))
    plain = (MeanVariance(np.array(m), np.array(s), 1) for m, s in (own, base))
    assert abs(found["scores"]["p1"] - divergence(*plain)) <= found["error_bound"] < 1e-3


def test_a_profile_comes_from_records_and_a_model(place: Place) -> None:
    records = np.random.default_rng(1).normal(size=(50, 4))
    np.save(place.root / "d.npy", records)
    np.savez(place.root / "d.npz", x=records)
    model = place.root / "m.toml"
    model.write_text(
        '[model]\nkind = "mlp"\nhidden = [5]\nprofiled_layer = "fc1"\n[weights]\noutputs = 2\nseed = 3\n'
    )
    for data in ("d.npy", "d.npz"):
        call("profile", "--data", place.root / data, "--model", model, "-o", place.root / f"{data}.json")
    one, other = (json.loads((place.root / f"{d}.json").read_text()) for d in ("d.npy", "d.npz"))
    assert len(one["mean"]) == len(one["variance"]) == 5
    assert one["count"] == 50
    assert one == other
    call("profile", "--data", "digits", "--rows", "0:9", "--model", model, "-o", place.root / "g.json")
    assert json.loads((place.root / "g.json").read_text())["count"] == 9
    keys = ("--public", place.root / "K/public.key", "--evaluator", place.root / "V/evaluator.pub")
    wide = ("--params", "pads-128")
    call("encrypt", *keys, "--profile", place.root / "g.json", "-o", place.root / "g.enc", *wide)
    (place.root / "b.json").write_text((place.root / "g.json").read_text())
    place.match("g.enc")  # a model's own profile fits the default bounds of pads-128, unanchored
    found = json.loads(place.reveal("--json"))
    assert abs(found["scores"]["g"]) <= found["error_bound"] < 1e-4
    assert "Expected records in" in call(
        "profile", "--data", "digits", "--rows", "5:5", "--model", model, "-o", place.root / "g.json", code=1
    )


def test_three_calls_in_python() -> None:
    keys, server = KeyHolder.generate(openings=10), Evaluator.generate()
    sealed = Profile(np.array([1.0]), np.array([1.0])).encrypt(keys.public, server.public)
    scores = server.match(keys.public, Profile(np.array([0.0]), np.array([1.0])), [sealed])
    found = keys.reveal(scores, server.public)
    assert abs(found.scores["profile"] - 0.5) <= found.error_bound  # KL(1, 1 | 0, 1)
