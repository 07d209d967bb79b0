"""Clients that draw whether they take part, under protocols whose server counts on what a client keeps."""

from __future__ import annotations

import pytest
from support.every import every
from support.private_studies import client_level
from support.tiny_study import composed

from securefl.core.errors import ConfigError
from securefl.study.config import Study, parse

DRAWS = {"sampling_rate": "0.5", "adversaries": '["others"]'}


def study(name: str, stale: bool, **privacy: str) -> Study:
    written = client_level(name, **privacy).text
    return parse(written.replace('"partial"', '"full"\nstale = true') if stale else written)


@every(
    ("name", "stale", "kept"),
    [
        ("stc", False, "a model that clients follow by its changes"),
        ("cs_fl", False, "a model that clients follow by its changes"),
        ("fedavg", True, "a model of their last training"),
    ],
)
def test_draws_are_refused_where_the_server_counts_on_what_a_client_keeps(
    name: str, stale: bool, kept: str
) -> None:
    """A client of STC that missed a draw sent zeros for good. SAFA's model was off by 1 / sampling_rate."""
    with pytest.raises(ConfigError, match=f"no `sampling_rate` under .privacy. beside {kept}.*got 0.5"):
        composed(study(name, stale, **DRAWS))
    composed(study(name, stale))
    composed(study("fedavg", False, **DRAWS))
