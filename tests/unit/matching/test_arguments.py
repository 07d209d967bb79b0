"""What a caller gives to a matching is checked when it is given, and refused in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.every import every

import securefl
from securefl import Evaluator, KeyHolder, Profile
from securefl.dp import MeanVariance
from securefl.errors import ConfigError, DataError
from securefl.matching import Anchor, Bounds, Options, divergence

HOLDER, SERVER, OWN = KeyHolder.generate(openings=9), Evaluator.generate(), Profile([0.5], [1.0])
KEYS, TO = HOLDER.public, SERVER.public
SEALED = OWN.encrypt(KEYS, TO)
SCORES = SERVER.match(KEYS, OWN, [SEALED])
ANY: Any = "any"

REFUSED: dict[str, Callable[[], object]] = {
    "a word of keys": lambda: KeyHolder.generate(parameters=ANY),
    "no word of keys": lambda: KeyHolder.generate(parameters=None),  # type: ignore[arg-type]
    "openings": lambda: KeyHolder.generate(openings=1.5),  # type: ignore[arg-type]
    "a word of options": lambda: Options(parameters=ANY),
    "a variant": lambda: Options(variant=ANY),
    "bounds": lambda: Options(bounds=ANY),
    "a bound": lambda: Bounds(mean=ANY),
    "an anchor of no profile": lambda: Anchor.of(ANY),
    "a divergence of none": lambda: divergence(OWN, ANY),
    "a secret for a public key": lambda: OWN.encrypt(HOLDER, TO),  # type: ignore[arg-type]
    "an evaluator for its public keys": lambda: OWN.encrypt(KEYS, SERVER),  # type: ignore[arg-type]
    "options of text": lambda: OWN.encrypt(KEYS, TO, options=ANY),
    "a client's key": lambda: OWN.encrypt(KEYS, TO, own=ANY),
    "a baseline of the default": lambda: OWN.encrypt_baseline(KEYS, TO),
    "a baseline of text": lambda: SERVER.match(KEYS, ANY, [SEALED]),
    "a baseline that is no Profile": lambda: SERVER.match(KEYS, ([0.5], [1.0]), [SEALED]),  # type: ignore[arg-type]
    "files": lambda: SERVER.match(KEYS, OWN, [ANY]),
    "a record": lambda: SERVER.match(KEYS, OWN, [SEALED], matched=ANY),
    "declared options": lambda: SERVER.declare(KEYS, OWN, options=ANY),
    "scores": lambda: HOLDER.reveal(ANY, TO),
    "a path for a ledger": lambda: HOLDER.reveal(SCORES, TO, ledger=ANY),
    "a client": lambda: HOLDER.reveal(SCORES, TO, clients=[ANY]),
    "a spread": lambda: HOLDER.reveal(SCORES, TO, spread=ANY),
    "a model": lambda: Profile([0.5], [1.0], 1, 7),  # type: ignore[arg-type]
    "no numbers": lambda: Profile(ANY, [1.0]),
    "objects": lambda: Profile(np.array([None], object), [1.0]),
    "two lengths": lambda: Profile([0.5], [1.0, 1.0]),
    "a negative variance": lambda: Profile([0.5], [-1.0]),
    "nan": lambda: Profile([np.nan], [1.0]),
    "a width of 0": lambda: Profile([], []),
    "a part of a record": lambda: Profile([0.5], [1.0], 1.5),  # type: ignore[arg-type]
}


@every("what", REFUSED)
def test_it_is_refused(what: str) -> None:
    with pytest.raises((ConfigError, DataError), match="Expected"):
        REFUSED[what]()


def test_a_secret_in_place_of_public_keys_is_told_where_they_are() -> None:
    with pytest.raises(ConfigError, match=r"got KeyHolder\(.*\)\. Pass its `public`"):
        OWN.encrypt(HOLDER, TO)  # type: ignore[arg-type]


def test_tensors_are_taken_where_arrays_are() -> None:
    mean, variance = torch.tensor([0.5], requires_grad=True), torch.tensor([1.0], dtype=torch.bfloat16)
    own = Profile(mean, variance)  # type: ignore[arg-type]
    assert isinstance(own, MeanVariance)
    assert divergence(own, OWN) == 0
    assert Anchor(mean, variance).centre.tolist() == [0.5]  # type: ignore[arg-type]
    found = securefl.select_by_profile(
        {"a": (mean, variance), "b": OWN}, OWN, 1, alpha=1.0, rng=np.random.default_rng(0)
    )
    assert set(found.scores) == {"a", "b"}


@every("parameters", ["pads", "strong"])
def test_a_key_holder_is_shown_in_a_line(parameters: Any) -> None:
    shown = repr(KeyHolder.generate(openings=9, parameters=parameters))
    assert len(shown) < 100
    assert "openings=9" in shown


def test_profiles_of_two_models_are_not_compared() -> None:
    one, other = (Profile([0.5], [1.0], 1, model) for model in ("a" * 16, "b" * 16))
    with pytest.raises(DataError, match="the same model"):
        SERVER.match(KEYS, one, [other.encrypt(KEYS, TO)])
    assert SERVER.match(KEYS, one, [one.encrypt(KEYS, TO)]).labels == ["profile"]
    assert SERVER.match(KEYS, one, [OWN.encrypt(KEYS, TO)]).labels == ["profile"]  # of a model unknown
    declared = SERVER.declare(KEYS, one, options=Options())
    declared.require_like(one)
    for strange in (other, Profile([0.5, 0.5], [1.0, 1.0])):
        with pytest.raises(DataError, match="Profile by the"):
            declared.require_like(strange)
