"""ADDS's figures are drawn from the folder of a finished run."""

from __future__ import annotations

from pathlib import Path

import adds_figures
import numpy as np
import pytest
from support.tiny_study import FEDAVG, text

from securefl.study.config import parse
from securefl.study.session import run_study

pytestmark = pytest.mark.docs

ADDS = '[[arm]]\nname = "ADDS"\nprotocol = "adds"\nfraction = 1.0\nrate = 0.1\nimportance = "slim"\n'


def test_a_run_folder_has_the_figures_and_the_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = text(FEDAVG, ADDS, clients=4, rounds=1).replace(
        'kind = "iid"', 'kind = "shards", per_client = 2'
    )
    run_study(parse(written), tmp_path / "run", lambda arm, seed, record: None)
    adds_figures.main(tmp_path / "run", tmp_path / "out")
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count('<span class="unit">sparse</span>') == 1, "the bytes of ADDS alone are sparse"
    assert len(capsys.readouterr().out.splitlines()) == 4, "a heading, the index's name and two arms"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"compression.png"}
    told = adds_figures.summary(tmp_path / "run")
    plain, adds = told.loc["FedAvg"], told.loc["ADDS"]
    assert (plain["parameters"], plain["macs"]) == (1.0, 1.0)
    assert np.isnan(plain["spearman"])
    assert 0 < adds["parameters"] < 0.7
    assert 0 < adds["macs"] < 0.7


def test_the_density_has_every_client_where_its_records_put_it(tmp_path: Path) -> None:
    written = text(FEDAVG, ADDS, clients=4, rounds=2, seeds="[1, 2]")
    held = written.replace("clients = 4", "clients = 4\nholdout = 0.2")
    run_study(parse(held), tmp_path / "run", lambda arm, seed, record: None)
    figures = adds_figures.figures_of(tmp_path / "run")
    own = figures[(figures["figure"] == "local accuracy") & (figures["arm"] == "FedAvg")]
    expected = []
    for _, client in own.groupby(["seed", "client"]):
        expected.append(client.loc[client["round"] == client["round"].max(), "value"].item())
    assert len(expected) == 4 * 2
    panels = adds_figures.density(figures).axes
    assert len(panels) == 2
    (axes,) = (axes for axes in panels if axes.get_title(loc="left").startswith("FedAvg"))
    # A client right at 1 is in the last bar.
    assert sum(bar.get_height() for bar in axes.patches) == len(expected)
    lines = axes.collections[0].get_segments()
    assert sorted(line[0][0] for line in lines) == pytest.approx(sorted(expected))
    assert axes.get_title(loc="left") == f"FedAvg: {np.mean(expected):.3f} ± {np.std(expected):.3f}"
    assert adds_figures.summary(tmp_path / "run").loc["FedAvg", "local"] == pytest.approx(np.mean(expected))
