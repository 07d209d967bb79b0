"""Epsilon of data holders over rounds is the ledger's, as that of the privacy card is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from support.private_studies import private
from support.tiny_study import FEDPROF, run, study, world

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import Algorithm, specs_of
from securefl.algorithm.plan import Plan
from securefl.core.errors import DataError
from securefl.core.messages import client_name
from securefl.engine.account import Account
from securefl.report.privacy_plots import epsilon, finite_parties
from securefl.study import spent as spending
from securefl.study.arm import ArmRun, arm_folder
from securefl.study.checkpoint import resume_point
from securefl.study.composition import composition
from securefl.study.config import Study, parse
from securefl.study.results import collect
from securefl.study.spent import spent

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


def test_the_last_point_is_the_figure_of_the_privacy_card(noised: Played) -> None:
    played, arms, _ = noised
    algorithm, plan = arms[played.arm.name]
    clients = played.world.problem.clients
    account = Account(plan, {spec.name: spec for spec in specs_of(algorithm)}, clients)
    account.restore(resume_point(record, clients).charged for record in played.records)
    (summary,) = collect(lossy(), [played]).summary
    assert max(map(account.epsilon, range(clients))) > summary.epsilon["server"], "choose another dropout"
    last = spent([played], arms).drop_duplicates("party", keep="last")
    assert dict(zip(last["party"], last["most"], strict=True)) == summary.epsilon


def test_the_largest_epsilon_is_the_ledgers(noised: Played) -> None:
    played, arms, _ = noised
    table = spent([played], arms)
    assert set(table["party"]) == {"server", "key-holder", "others"}
    for record in played.records:
        for party, own in record["epsilon"].items():
            (row,) = table[(table["round"] == record["round"]) & (table["party"] == party)].itertuples()
            assert row.most == own
            assert 0 <= row.least <= row.most
    server = table[table["party"] == "server"]
    assert server["most"].is_monotonic_increasing
    assert (server["least"] < server["most"]).any(), "half of the clients take part in a round"


def test_the_spread_is_that_of_all_clients_ledgers(noised: Played) -> None:
    played, arms, filed = noised
    table = spent([played], arms)
    last = table[table["party"] == "server"].iloc[-1]
    assert len(set(filed)) > 1
    assert last[["least", "most"]].tolist() == [min(filed), max(filed)]


def test_a_long_run_has_few_rounds_with_the_last(noised: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    played, arms, _ = noised
    monkeypatch.setattr(spending, "_MOST_POINTS", 2)
    assert sorted(set(spent([played], arms)["round"])) == [1, 3]


def lines(figure: Figure) -> list[list[float]]:
    return [[float(y) for y in np.asarray(line.get_ydata())] for line in figure.axes[0].lines]


def test_infinite_lies_above_finite_and_the_budget_is_drawn(noised: Played) -> None:
    played, arms, _ = noised
    table = spent([played], arms)
    other = table.assign(arm="without", least=inf, most=inf)
    both = pd.concat([table, other])
    figure = epsilon(both, budget=10.0)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"against the {party}" for party in finite_parties(table)
    ]
    finite, endless, budget = lines(figure)
    assert finite == pytest.approx(table[table["party"] == "server"]["most"].tolist())
    assert min(endless) > 10.0
    assert budget == [10.0, 10.0]
    assert "infinite" in [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert finite_parties(other) == []


def test_a_run_without_noise_spends_an_infinite_epsilon(tmp_path: Path) -> None:
    of = study(FEDPROF)
    played = run(of, tmp_path)
    table = spent([played], {played.arm.name: composition(of, played.arm, world(of))})
    assert table[table["party"] == "server"]["most"].eq(inf).all()
    assert finite_parties(table) == []


def test_a_table_without_a_column_is_refused(noised: Played) -> None:
    played, arms, _ = noised
    with pytest.raises(DataError, match="without most"):
        epsilon(spent([played], arms).drop(columns="most"))


def test_rounds_that_are_not_shown_are_charged(noised: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    played, arms, _ = noised
    whole = spent([played], arms)
    monkeypatch.setattr(spending, "_MOST_POINTS", 2)
    found, figures = spent([played], arms), ["least", "most"]
    expected = whole.loc[whole["round"] != 2, figures].to_numpy()
    assert found[figures].to_numpy() == pytest.approx(expected)
