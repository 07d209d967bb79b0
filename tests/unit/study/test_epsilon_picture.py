"""Epsilon of data holders over rounds is the ledger's, as that of the privacy card is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from support.private_studies import private
from support.tiny_study import run, world

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import Algorithm, specs_of
from securefl.algorithm.plan import Plan
from securefl.core.messages import client_name
from securefl.core.release import PARTIES
from securefl.engine.account import Account
from securefl.report.privacy_plots import epsilon, finite_parties
from securefl.study.arm import ArmRun, arm_folder
from securefl.study.checkpoint import resume_point
from securefl.study.composition import composition
from securefl.study.config import Study, parse
from securefl.study.results import collect

Played = tuple[ArmRun, Mapping[str, tuple[Algorithm, Plan]], Sequence[float]]
"""A run, its arms, and each client's epsilon against the server by its ledger."""


def lossy() -> Study:
    """An order that is lost on the way is in the server's account, and in no ledger."""
    of = private("fedavg", 'fraction = 0.5\naggregation = "partial"', rounds=3)
    return parse(of.text + "\n[network]\ndropout = 0.3\n")


@pytest.fixture(scope="module")
def noised(tmp_path_factory: pytest.TempPathFactory) -> Played:
    of = lossy()
    folder = tmp_path_factory.mktemp("noised")
    played = run(of, folder)
    arms = {played.arm.name: composition(of, played.arm, world(of))}
    terms = arms[played.arm.name][1].terms()
    with Ledger(arm_folder(folder, played.arm, played.world.seed) / "ledger.sqlite", terms) as ledger:
        filed = [ledger.epsilon(client_name(k), "server") for k in range(played.world.problem.clients)]
    return played, arms, filed


def test_the_figure_of_the_privacy_card_is_the_ledgers_and_not_the_servers(noised: Played) -> None:
    played, arms, filed = noised
    algorithm, plan = arms[played.arm.name]
    clients = played.world.problem.clients
    account = Account(plan, {spec.name: spec for spec in specs_of(algorithm)}, clients)
    account.restore(resume_point(record, clients).charged for record in played.records)
    found = collect(lossy(), [played])
    epsilon = found.summary[0].epsilon["server"]
    assert max(map(account.epsilon, range(clients))) > epsilon, "choose another dropout"
    assert found.metrics["epsilon_server"].is_monotonic_increasing
    assert found.metrics["epsilon_server"].iloc[-1] == epsilon == max(filed)


def lines(figure: Figure) -> list[list[float]]:
    return [[float(y) for y in np.asarray(line.get_ydata())] for line in figure.axes[0].lines]


def test_infinite_lies_above_finite_and_the_budget_is_drawn(noised: Played) -> None:
    played, _, _ = noised
    table = collect(lossy(), [played]).metrics
    other = table.assign(arm="without", **{f"epsilon_{party}": inf for party in PARTIES})
    both = pd.concat([table, other])
    figure = epsilon(both, budget=10.0)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"against the {party}" for party in finite_parties(table)
    ]
    finite, endless, budget = lines(figure)
    assert finite == pytest.approx(table["epsilon_server"].tolist())
    assert min(endless) > 10.0
    assert budget == [10.0, 10.0]
    assert "infinite" in [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert finite_parties(other) == []
