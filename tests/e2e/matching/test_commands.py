"""The five commands on files, as three people would run them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.matching_place import Place, call, kl, write

from securefl.dp.moments import MeanVariance
from securefl.matching.profiles import divergence

PADS = ("pads", "pads-128")


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
        *((variant, params, "b.json") for variant in ("full", "mean-only") for params in PADS),
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
        assert abs(score - kl(label)) <= found["error_bound"] < (1e-3 if params in PADS else 0.01)
    if params in PADS:
        told = place.encrypt("p1")
        (bound,) = re.findall(r"all 1000 scores of this key within (\S+)\n", told)
        assert found["error_bound"] <= 1.1 * float(bound) < 1e-3
        assert "probability" not in told + place.reveal(), "a bound of pads always holds"


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


def test_secrets_are_their_owners_and_keys_are_not_overwritten(place: Place) -> None:
    place.reveal()
    for name in ("K/secret.key", "V/evaluator.key", "K/ledger.sqlite"):
        assert (place.root / name).stat().st_mode & 0o077 == 0, name
    assert "never overwritten" in call("keygen", "--role", "evaluator", "--out", place.root / "V", code=1)


def test_an_anchor_brings_far_profiles_into_the_bounds(tmp_path: Path) -> None:
    write(tmp_path / "a.json", ([1000.0, 0.0, 0.0], [1e4, 1.0, 1e-8]))
    place = Place(tmp_path, "--anchor", str(tmp_path / "a.json"))
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
