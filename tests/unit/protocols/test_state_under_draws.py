"""Clients that draw whether they take part, where the server counts on more than one release's draw."""

from __future__ import annotations

import pytest
from support.every import every
from support.private_studies import client_level
from support.tiny_study import composed, text, with_privacy

from securefl.core.errors import ConfigError
from securefl.study.config import Study, parse

DRAWS = {"sampling_rate": "0.5", "adversaries": '["others"]'}


def study(name: str, options: str, **privacy: str) -> Study:
    """Epsilon 8 per client, by noise of the server."""
    if "client_bound" in options:
        arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n{options}\n'
        client = {"unit": '"client"', "adjacency": '"zero-out"', "noise": '"central"', "epsilon": "8.0"}
        client |= {"delta": "1e-2", "adversaries": '["others"]'}
        return parse(with_privacy(text(arm, clients=6, non_private="[]"), client | privacy))
    stale = "stale" in options
    written = client_level(name, more="" if stale else options, **privacy).text
    return parse(written.replace('"partial"', f'"full"\n{options}') if stale else written)


@every(
    ("name", "options", "said"),
    [
        ("stc", "", "beside a model that clients follow by its changes"),
        ("cs_fl", "", "beside a model that clients follow by its changes"),
        ("fedavg", "stale = true", "beside 'update', .*reads what a client keeps of another release"),
        ("adds", "", "reads what a client keeps of another release"),
        ("feddbe", "mean_bound = 10.0", "is asked for once"),
        ("fedlog", 'body = "public"\nclient_bound = 20.0', "is asked for once"),
        ("heads", "client_bound = 20.0", "is asked for once"),
    ],
)
def test_draws_are_refused_where_a_sum_counts_on_another_draw(name: str, options: str, said: str) -> None:
    """A client of STC that missed a draw sent zeros for good, SAFA's model was off by 1 / sampling_rate, a
    second sum counted clients with sampling_rate ** 2, and who missed a sum that is asked for once never was
    in it."""
    with pytest.raises(ConfigError, match=f"no `sampling_rate` under .privacy. .*{said}.*Leave"):
        composed(study(name, options, **DRAWS))
    composed(study(name, options))
    composed(study("fedavg", "", **DRAWS))
