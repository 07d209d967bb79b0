"""FedLog under shares of noise: they add up, or the sum is thrown away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.observed_runs import couple
from support.trained_bodies import PLAN, run, study, world

from securefl.accounting.events import NON_PRIVATE
from securefl.core.errors import ConfigError
from securefl.mechanisms.charges import Protection
from securefl.protocols.class_sums import Statistic
from securefl.protocols.fedlog.options import FedLog
from securefl.study.composition import composition
from securefl.study.config import Study, parse


def spec() -> Any:
    (made,) = FedLog().build(world().problem).contributions
    assert isinstance(made, Statistic)
    return made.spec


def test_a_server_that_sums_in_the_clear_is_charged_with_what_it_sees() -> None:
    charge = Protection(PLAN, spec()).charge()
    assert charge.others.noise_multiplier == 3.0
    assert charge.server.noise_multiplier == pytest.approx(3.0 / np.sqrt(6), rel=1e-3)
    assert charge.server.noise_multiplier <= 3.0 / np.sqrt(6)
    private = FedLog(body="private").build(world().problem).contributions[0].spec
    assert Protection(replace(PLAN, non_private=("statistic",)), private).charge() == NON_PRIVATE


def test_a_grid_that_is_too_coarse_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="too coarse"):
        Protection(replace(PLAN, noise_multiplier=0.03), spec()).charge()
    with pytest.raises(ConfigError, match="at least 4 grid units"):
        Protection(replace(PLAN, noise_multiplier=0.1), replace(spec(), cohort=2500)).charge()
    Protection(replace(PLAN, noise_multiplier=0.1), spec()).charge()


def distributed(dropout: float, extra: str = "") -> Study:
    of = study(
        'name = "FedLog"\nprotocol = "fedlog"',
        rounds=1,
        noise='"distributed"',
        epsilon="8.0",
        dropout=str(dropout),
        corrupt="0.2",
        min_cohort_size="1",
        min_honest="1",
        max_client_weight="0.5",
        non_private="[]",
    )
    return parse(of.text + extra)


def test_a_run_with_distributed_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    couple(monkeypatch, b"shares")
    finished = run(distributed(0.2), tmp_path)
    (record,) = finished.records
    assert record["epsilon"]["others"] == pytest.approx(8.0, abs=1e-6)
    assert record["epsilon"]["server"] > 15, "the trusted sum: it sees single contributions"
    assert record["accuracy"] > 0.5


def test_a_sum_of_too_few_is_thrown_away(tmp_path: Path) -> None:
    """Fewer shares of noise than were promised are no release."""
    lossy = distributed(0.0, "\n[network]\ndropout = 0.3\n")
    (record,) = run(lossy, tmp_path).records
    assert record["answered"] == []
    assert "the noise would fall short" in record["abstained"]["server"]


@every(
    ("changed", "said"),
    [
        ("dropout = 0.2\ncorrupt = 0.8", "less than 1 together"),
        ("corrupt = 0.0", "Expected `dropout`"),
    ],
)
def test_distributed_noise_needs_its_numbers(changed: str, said: str, tmp_path: Path) -> None:
    text = distributed(0.2).text.replace("dropout = 0.2\ncorrupt = 0.2", changed)

    def prepare() -> None:
        of = parse(text)
        composition(of, of.arms[0], world())

    with pytest.raises(ConfigError, match=said):
        prepare()
