"""One selection by encrypted profiles for somebody else's loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every

import securefl
from securefl.core.errors import BudgetExceeded, ConfigError, DataError
from securefl.dp.moments import MeanVariance
from securefl.matching.profiles import divergence

NEAR, FAR = ([0.1, 0.0], [1.0, 1.1]), ([3.0, -2.0], [1.0, 4.0])
MIDDLE = ([0.0, 0.0], [1.0, 1.0])
THREE: dict[str, Any] = {"ann": NEAR, "bob": NEAR, "eve": FAR}


def chosen(of: Any = THREE, middle: Any = MIDDLE, count: int = 2, **options: Any) -> Any:
    rng = np.random.default_rng(0)
    return securefl.select_by_profile(
        of, middle, count, **{"alpha": 50.0, "rng": rng, "scores": "pads", **options}
    )


@every("scores", ["pads", "ckks"])
def test_scores_are_the_divergence_and_the_far_one_is_left_out(scores: str) -> None:
    found = chosen(scores=scores)
    assert set(found.clients) == {"ann", "bob"}
    for name, (mean, variance) in THREE.items():
        own, middle = (MeanVariance(np.array(m), np.array(v), 1) for m, v in ((mean, variance), MIDDLE))
        assert found.scores[name] == pytest.approx(divergence(own, middle), abs=1e-3)
    assert found.epsilon == {"server": np.inf, "key-holder": 0.0, "others": np.inf}
    said = "of each client one score, its profile's divergence from the baseline"
    assert found.learns["server"].startswith(f"{said} (one linear function of its vector, at most 1 time; ")
    # The card's words on a server that breaks the protocol, and on the key holder of this very scheme.
    assert ("accomplice" in found.learns["server"]) == (scores == "ckks")
    assert "the server's baseline" in found.learns["key-holder"]


def test_the_draw_is_the_callers_stream() -> None:
    assert chosen(count=1, alpha=0.0).clients == chosen(count=1, alpha=0.0).clients
    drawn = {chosen([NEAR] * 6, count=1, alpha=0.0, rng=np.random.default_rng(k)).clients for k in range(8)}
    assert len(drawn) > 2


def test_profiles_come_as_objects_too(tmp_path: Path) -> None:
    public = securefl.Profile(np.array(NEAR[0]), np.array(NEAR[1]))
    found = chosen([public, public, NEAR], ledger=tmp_path / "ledger", delta=1e-5)
    assert np.ptp(list(found.scores.values())) < 1e-4, "but for their noise"
    assert (tmp_path / "ledger").is_file()


def test_a_ledger_lets_as_many_scores_out_as_were_declared(tmp_path: Path) -> None:
    """Baselines that differ at will would read a profile, a number a call."""
    own: dict[str, Any] = {"ledger": tmp_path / "ledger", "delta": 1e-5, "scores": "pads"}
    chosen(**own)
    with pytest.raises(BudgetExceeded, match=r"at most 1 .* 'profile'"):
        chosen(**own)
    chosen(**own, max_releases=2)
    with pytest.raises(BudgetExceeded, match="1 more after 2"):
        chosen(**own, max_releases=2)


@every(
    ("options", "match"),
    [
        ({"max_releases": 0}, "max_releases of 1 or more"),
        ({"max_releases": 1.5}, "`max_releases` as int"),
        ({"count": 4}, "a count from 1 to 3"),
        ({"count": 0}, "a count from 1 to 3"),
        ({"count": 1.5}, "`count` as int"),
        ({"count": "2"}, "`count` as int"),
        ({"alpha": np.nan}, "a finite alpha"),
        ({"alpha": 1e308}, "a finite alpha"),
        ({"alpha": "1"}, "`alpha` as float"),
        ({"delta": "x"}, "`delta` as float"),
        ({"parameters": ["x"]}, "`parameters` as str"),
        ({"bounds": 3}, r"`bounds` as Bounds \| None"),
        ({"scores": "clear"}, "`scores` as ckks, pads"),
        ({"of": {}}, "a count from 1 to 0"),
        ({"of": "abc", "count": 1}, "`profiles` as Mapping"),
        ({"of": {"a": ([1.0], [1.0]), "b": NEAR}}, "profiles of 2 elements"),
        ({"of": {"a": ([np.nan, 1], [1, 1]), "b": NEAR}}, "a: Expected finite entries"),
        ({"of": {"a": ([0, 1], [-1, 1]), "b": NEAR}}, "a: Expected variances of at least 0"),
        ({"of": {"a": 3, "b": NEAR}}, "a: expected a Profile, or a pair"),
        ({"of": {"a": (["x", "y"], [1, 1]), "b": NEAR}}, "a: Expected mean as"),
        ({"middle": ([0, 0], [1e-9, 1e9])}, "1 that lie outside the declared bounds"),
        ({"ledger": "somewhere"}, "Expected `delta` with a ledger"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises((ConfigError, DataError), match=match):
        chosen(**options)


@every("rng", [None, 0])
def test_a_draw_that_cannot_be_is_refused_before_scores_leave(rng: Any, tmp_path: Path) -> None:
    """The attack: all scores were charged and sent, and then the draw failed without them."""
    with pytest.raises(ConfigError, match="`rng`"):
        chosen(rng=rng, ledger=tmp_path / "ledger", delta=1e-5)
    assert not list(tmp_path.iterdir())
