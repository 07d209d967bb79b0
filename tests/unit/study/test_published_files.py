"""Whatever changes of what is not for publication, each file outside of the private folder stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from support.cheap_runs import undrawn
from support.observed_runs import couple
from support.own_study import people, written
from support.private_studies import DPSGD
from support.tiny_study import FEDAVG, FEDPROF, study, with_privacy

import securefl
from securefl.report.pages import Picture
from securefl.report.run_page import PrivacyRow
from securefl.storage.private_folder import PRIVATE
from securefl.study import run_report, session
from securefl.study.alarms import Alarm
from securefl.study.config import Study
from securefl.study.results import Results
from securefl.study.seeded import Digests

LG = '[[arm]]\nname = "LG"\nprotocol = "lg_fedavg"\n'
TIMES = ("seconds_model", "watt_hours", "wall_seconds")
TESTED = ("final_accuracy", "best_accuracy", "floor")
HEAD = re.compile(rb"[0-9a-f]{64}")
"""The head of a ledger's chain, in which times are: no two runs have the same."""
CARD = [PrivacyRow(party="server", arms=["FedAvg"], learns="the sum", epsilon="1")]


@pytest.fixture(scope="module", autouse=True)
def blank_pictures() -> Iterator[None]:
    """The pictures of results with participants are blank, to save time. Those without are all published."""
    made = run_report.figures

    def figures(of: Study, found: Results, *more: Any) -> list[Picture]:
        drawn = [*made(of, found, *more)]
        blank = [replace(own, draw=lambda: Figure(figsize=(0.5, 0.5))) for own in drawn]
        return blank if len(found.participation) else drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "figures", figures)
        yield


@pytest.fixture(scope="module", params=["global", "personal", "both"])
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Study, Results]:
    arms = {"global": (FEDAVG, FEDPROF), "personal": (LG,), "both": (FEDAVG, LG)}[request.param]
    of = study(*arms, extra="[network]\ndropout = 0.3\n")
    with undrawn():
        found, _ = session.run_study(of, tmp_path_factory.mktemp("run"), lambda arm, seed, record: None)
    return of, found


def disturbed(found: Results) -> Results:
    """The results with each figure changed that is for the person at the machine alone."""
    other, metrics = np.random.default_rng(1), found.metrics.copy()
    personal = metrics["models"] == "personal"
    for name in ("seconds", "watt_hours", "wall_seconds", "answered", "survivors_lost"):
        metrics[name] = 1 + metrics[name] * 3
    metrics[["accuracy", "loss", "floor"]] = metrics[["accuracy", "loss", "floor"]].mask(personal, 0.4321)
    participation = found.participation.assign(selected=7, answered=7, retired=True, label="9")
    divergence = {"arm": "FedAvg", "seed": 3, "round": 1, "client": 4, "quality": "clean"}
    figures = pd.DataFrame([{**divergence, "figure": "divergence", "value": 0.5}])
    summary = tuple(_disturbed_arm(arm) for arm in found.summary)
    measures = found.measures.copy()
    own = (measures["models"] == "personal") | ~measures["kind"].isin(["arm", "constant"])
    measures.loc[own, ["accuracy", "auc", "f1", "ece", "r2", "rmse"]] = other.random()
    measures[["at_clients", "worst_decile", "clients"]] = 0.125
    reason = {"arm": "FedAvg", "who": "clients", "what": "silent", "reason": "Lost.", "clients": 2}
    return replace(
        found,
        metrics=metrics,
        participation=participation,
        figures=figures,
        summary=summary,
        attendance=pd.DataFrame(
            [("FedAvg", 3, "client-0001", "why", 1, 2, 2)],
            columns=["arm", "seed", "party", "reason", "since", "until", "rounds"],
        ),
        abstentions=pd.DataFrame([{**reason, "rounds": 1, "times": 2, "told": ""}]),
        alarms=(Alarm(arm="FedAvg", text="FedAvg: nobody answered", learnt=False),),
        measures=measures,
        confusion=_scattered(found.confusion, "records"),
        reliability=_scattered(found.reliability, "right"),
    )


def _disturbed_arm(arm: Any) -> Any:
    hidden = dict.fromkeys((*TIMES, *(TESTED if arm.models == "personal" else ())), 0.8765)
    first = {"rounds_to_target": 1, "by_seed": [0.8765]} if arm.models == "personal" else {}
    return replace(arm, **hidden, **first)


def _scattered(table: pd.DataFrame, name: str) -> pd.DataFrame:
    own = (table["models"] == "personal") | ~table["kind"].isin(["arm", "constant"])
    return table.assign(**{name: table[name].mask(own, 5)})


def outside(folder: Path) -> dict[str, bytes]:
    """Each file that may be published, without the heads of ledgers."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        name.as_posix(): HEAD.sub(b"", path.read_bytes())
        for name, path in files.items()
        if PRIVATE not in name.parts
    }


def test_no_private_figure_reaches_a_file_outside(finished: tuple[Study, Results], tmp_path: Path) -> None:
    of, found = finished
    made = []
    for name, own in (("as it was", found), ("disturbed", disturbed(found))):
        folder = tmp_path / name
        digests = {"data": f"SHA-256 of {name}"}
        run_report.write(of, own, CARD, folder, "securefl run x", marks=Digests(private=digests))
        made.append(outside(folder))
    assert made[0].keys() == made[1].keys()
    assert {name for name in made[0] if made[0][name] != made[1][name]} == set()
    assert "report.html" in made[0]


TABLE = """
[data]
test_share = 0.3
public_num_examples = 10
partition = { kind = 'natural' }
target = "ill"
classes = ["no", "yes"]
ignore = ["name"]
client_column = "hospital"
[data.columns]
age = { range = [0, 120], missing = 40, indicator = true }
sex = { categories = ["f", "m"] }
hospital = { categories = ["north", "south", "west", "east"] }
"""


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of a finite epsilon and one noise, without a record and with it. No step of training draws it."""
    whole = people(60).assign(dose=lambda own: own["dose"].astype(float))
    odd = whole.iloc[[12]].assign(dose=77.0)
    model = '[model]\nkind = "mlp"\nhidden = [4]\n'
    of = with_privacy(
        written(data=TABLE, model=model, extra=DPSGD, rounds=2),
        {"adjacency": '"add-remove"', "non_private": "[]"},
    )
    folders = []
    for frame in (whole, pd.concat([whole, odd])):
        home = tmp_path_factory.mktemp("home")
        out = home / "run"
        with pytest.MonkeyPatch.context() as patch, undrawn():
            couple(patch, bytes(32))
            securefl.run(of, data=frame, out=out, workers=1, progress=False)
        folders.append(out)
    return folders


@pytest.mark.filterwarnings("ignore:An arm of Run:RuntimeWarning")
def test_a_record_that_no_release_has_is_in_no_file_outside(neighbours: list[Path]) -> None:
    one, other = (
        {name: content.replace(str(folder.parent).encode(), b"") for name, content in outside(folder).items()}
        for folder in neighbours
    )
    assert {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)} == set()
    tables = [(folder / PRIVATE / "summary.json").read_bytes() for folder in neighbours]
    assert tables[0] != tables[1], "the owner sees the record"
