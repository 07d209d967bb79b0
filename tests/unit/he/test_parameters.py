from __future__ import annotations

import math

import pytest
import tenseal.sealapi as sealapi
from support.every import every

from securefl.core.errors import ConfigError
from securefl.he.parameters import COMPACT, STRONG, Parameters, by_name, capacity
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Bounds, Variant

NARROW = Bounds(mean=16, variance_high=64, weight=16)


def terms(parameters: Parameters = STRONG, bounds: Bounds | None = None, **changes: object) -> LinearTerms:
    values = {"length": 84, "variant": Variant.FULL, "scores": 500} | changes
    length, variant = values.pop("length"), values.pop("variant")
    declared = (bounds or Bounds()).linear(length, variant)  # type: ignore[arg-type]
    return LinearTerms(parameters=parameters, bounds=declared, **values)  # type: ignore[arg-type]


@every(("parameters", "bits"), [(STRONG, (60, 60, 30)), (COMPACT, (60, 29, 17))])
def test_pinned_primes_are_seals_own(parameters: Parameters, bits: tuple[int, ...]) -> None:
    made = sealapi.CoeffModulus.Create(parameters.poly_modulus_degree, list(bits))
    assert [m.value() for m in made] == [*parameters.primes, parameters.special_prime]
    assert (*map(int.bit_length, (*parameters.primes, parameters.special_prime)),) == bits


def test_names() -> None:
    assert (by_name("strong"), by_name("compact")) == (STRONG, COMPACT)
    with pytest.raises(ConfigError, match="'weak'"):
        by_name("weak")


@every("value", [0, 1, -1, 2**80, -(2**80)])
def test_residues_compose_to_the_integer(value: int) -> None:
    for parameters in (STRONG, COMPACT):
        residues = tuple(value % p for p in parameters.primes)
        assert parameters.centre(parameters.compose(residues)) == value


def test_capacity_is_what_the_modulus_holds_less_the_guard() -> None:
    assert math.log2(capacity(STRONG)) == pytest.approx(31 + math.log2(7 / 8), abs=1e-6)
    assert math.log2(capacity(COMPACT)) == pytest.approx(25 + math.log2(7 / 8), abs=1e-2)


def test_default_bounds_fit_strong_up_to_512_and_beyond_capacity_is_refused() -> None:
    assert terms(length=512).largest < capacity(STRONG) / 16
    assert terms(COMPACT, NARROW, length=512).largest < capacity(COMPACT)
    with pytest.raises(ConfigError, match="the query's bounds"):
        terms(COMPACT, length=512)
    with pytest.raises(ConfigError, match="the query's bounds"):
        terms(bounds=Bounds(mean=2000))


def test_the_edge_of_capacity_does_not_wrap() -> None:
    """Largest score plus twelve sigma stays inside half the modulus, whatever terms are accepted."""
    for accepted in (terms(length=512), terms(COMPACT, NARROW, length=512), terms(COMPACT, length=120)):
        p = accepted.parameters
        assert accepted.largest / accepted.unit + 12 * accepted.sigma + accepted.noise_bound < p.modulus / 2


def test_flooding_follows_the_specification() -> None:
    """Section 2: sigma = sqrt(12 tau) 2^20 t; t = 8 sigma_ct sqrt(N/2) W / (q s_x) in units of div."""
    for made, bounds in ((terms(scores=77), Bounds()), (terms(COMPACT, NARROW, scores=77), NARROW)):
        n, s_x = made.parameters.poly_modulus_degree, made.data_scale
        w = bounds.weight * math.sqrt(84)
        t = 8 * math.sqrt((1 + 2 * n / 3) / 12) * math.sqrt(n / 2) * w / (84 * s_x)
        unit = made.unit / 84
        assert made.noise_bound * unit == pytest.approx(t, rel=1e-6)
        assert made.sigma * unit == pytest.approx(math.sqrt(12 * 77) * 2**20 * t, rel=1e-6)


def test_grid_is_a_power_of_two_far_below_sigma() -> None:
    for made in (terms(), terms(COMPACT, NARROW), terms(scores=1)):
        assert made.grid & (made.grid - 1) == 0
        assert 2**44 <= made.sigma / made.grid < 2**45
        assert made.grid < made.noise_bound / 1000


def test_flooding_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="flooding for"):
        terms(COMPACT, NARROW, scores=10**18)


def test_error_bound_grows_with_scores_and_with_what_is_opened_together() -> None:
    assert terms(scores=5000).error_bound() > 3 * terms(scores=500).error_bound()
    assert terms().error_bound(64) > terms().error_bound()
    assert terms(COMPACT).error_bound() > 100 * terms().error_bound()


def test_lengths_and_shapes() -> None:
    assert (terms().hidden_length, terms().clear_length) == (169, 0)
    mean_only = terms(variant=Variant.MEAN_ONLY)
    assert (mean_only.hidden_length, mean_only.clear_length) == (168, 85)
    assert (terms().ciphertexts, terms(length=2000, parameters=STRONG, bounds=Bounds()).ciphertexts) == (1, 1)
    assert terms(length=3000, parameters=STRONG, bounds=Bounds()).ciphertexts == 2
    with pytest.raises(ConfigError, match="above 0"):
        terms(scores=0)


def test_every_term_is_bound_into_the_digest() -> None:
    changed = [
        terms(length=85),
        terms(scores=501),
        terms(variant=Variant.MEAN_ONLY),
        terms(bounds=Bounds(weight=31.5)),
        terms(COMPACT),
    ]
    assert len({t.digest() for t in [terms(), *changed]}) == 6
    assert terms().digest() == terms().digest()
