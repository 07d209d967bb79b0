"""FedLog under shares of noise: a sum of too few is thrown away."""

from __future__ import annotations

from pathlib import Path

from support.trained_bodies import run, study

from securefl.study.config import parse


def test_a_sum_of_too_few_is_thrown_away(tmp_path: Path) -> None:
    """Fewer shares of noise than were promised are no release."""
    shares = {
        "noise": '"distributed"',
        "epsilon": "8.0",
        "dropout": "0.0",
        "corrupt": "0.2",
        "min_honest": "1",
    }
    least = {"min_cohort_size": "1", "max_client_weight": "0.5", "non_private": "[]"}
    of = study('name = "FedLog"\nprotocol = "fedlog"', rounds=1, **shares, **least)
    (record,) = run(parse(of.text + "\n[network]\ndropout = 0.3\n"), tmp_path).records
    assert record["answered"] == []
    assert "the noise would fall short" in record["abstained"]["server"]
