"""One record, one that is unusable, or none: under a finite epsilon nothing public tells which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.cheap_runs import undrawn
from support.command_line import securefl as command
from support.every import every
from support.own_records import Items
from support.own_study import people, written
from support.private_studies import DPSGD
from support.tiny_study import with_privacy

import securefl
from securefl.core.errors import DataError
from securefl.storage.private_folder import PRIVATE

# That an arm learnt nothing, or has no test records, is told to the owner alone.
pytestmark = pytest.mark.filterwarnings("ignore:An arm of Run:RuntimeWarning")
CLIENTS = ("north", "south", "west", "east")
TABLE = """
target = "ill"
classes = ["no", "yes"]
ignore = ["name"]
client_column = "hospital"
[data.columns]
age = { range = [0, 120], missing = 40, indicator = true }
sex = { categories = ["f", "m"] }
hospital = { categories = ["north", "south", "west", "east"] }
"""
SPLITS = ("", "test_share = 0.6", "holdout = 0.6", "test_clients = 1", "validation = 0.5\nholdout = 0.5")
WHOSE = ("federation", "client", "class")
ODD = ("none", "one", "unusable")
FORMS = ("table", "torch", "arrays", "lists")
TRUSTING = 'protocol = "fltrust"\nroot = 1'


def text(split: str, form: str, source: str = "", extra: str = DPSGD) -> str:
    head = "\n[data]\npublic_num_examples = 10\npartition = { kind = 'natural' }\n"
    rest = TABLE if form == "table" else "classes = 2\n"
    model = '[model]\nkind = "mlp"\nhidden = [4]\n'
    whole = written(data=f"{head}{source}{split}\n{rest}", model=model, extra=extra, rounds=1)
    return with_privacy(whole, {"adjacency": '"add-remove"', "non_private": "[]"}) if extra else whole


def frame(whose: str, odd: str) -> pd.DataFrame:
    """Nothing, one record or an unusable one: of all clients, of `west`, or of the class `yes`."""
    whole = people(60).assign(dose=lambda own: own["dose"].astype(float))
    mine = {
        "federation": whole["age"] >= 0,
        "client": whole["hospital"] == "west",
        "class": whole["ill"] == "yes",
    }[whose]
    one = whole[mine].iloc[: 0 if odd == "none" else 1]
    if odd == "unusable":
        one = one.assign(dose=np.inf)
    return pd.concat([whole[~mine], one])


def brought(form: str, whose: str, odd: str) -> Any:
    whole = frame(whose, odd)
    if form == "table":
        return whole
    clients = [whole[whole["hospital"] == name] for name in CLIENTS]
    x = [own[["age", "dose"]].to_numpy(np.float32) / 100 for own in clients]
    y = [(own["ill"] == "yes").to_numpy(np.int64) for own in clients]
    pairs = list(zip(x, y, strict=True))
    match form:
        case "torch":
            return [Items(*own) for own in pairs]
        case "arrays":
            return pairs
    return [{"x": own.tolist(), "y": targets.tolist()} for own, targets in pairs]


def ended(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def public(folder: Path) -> list[str]:
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in files if PRIVATE not in path.parts)


def told(
    form: str, whose: str, split: str, places: Callable[[], Path], protocol: str = 'protocol = "fedavg"'
) -> list[tuple[str, list[str]]]:
    """How a run ends on each of ODD, and its public files."""
    found = []
    for odd in ODD:
        data, out = brought(form, whose, odd), places()
        study = text(split, form).replace('protocol = "fedavg"', protocol)
        words = ended(lambda: securefl.run(study, data=data, out=out, workers=1, progress=False))  # noqa: B023
        found.append((words, public(out)))
    return found


draws = {
    "form": st.sampled_from(FORMS),
    "whose": st.sampled_from(WHOSE),
    "split": st.sampled_from(SPLITS),
}


def _same(
    tmp_path_factory: pytest.TempPathFactory, form: str, whose: str, split: str, *protocol: str
) -> list[str]:
    """Check that runs end alike on each of ODD. Returns their public files."""
    with undrawn():
        found = told(form, whose, split, lambda: tmp_path_factory.mktemp("runs") / "run", *protocol)
    assert found[0][0] == ""
    assert found[0] == found[1] == found[2]
    return found[0][1]


@settings(max_examples=2, phases=[Phase.generate])
@given(**draws)
def test_a_run_tells_nothing(
    form: str, whose: str, split: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _same(tmp_path_factory, form, whose, split)


def test_fltrust_tells_nothing_of_how_many_records_its_server_has(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """It was refused with the number of them."""
    _same(tmp_path_factory, "table", "federation", "test_share = 0.6", TRUSTING)


@pytest.mark.slow
@settings(max_examples=40, phases=[Phase.generate])
@given(**draws)
def test_no_run_tells_anything(
    form: str, whose: str, split: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _same(tmp_path_factory, form, whose, split)


@pytest.mark.parametrize("whose", ["federation", "client"])
def test_the_commands_tell_nothing(whose: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The second attack, through the files and doors of the command line; a sweep pays for its choice."""
    ends = []
    for odd in ODD:
        home = tmp_path / odd
        home.mkdir()
        frame(whose, odd).to_csv(home / "people.csv", index=False)
        study = text("holdout = 0.6", "table", 'source = "people.csv"\n')
        (home / "study.toml").write_text(study, encoding="utf-8")
        choice = '\n[sweep]\nchoice = { trials = "poisson", mean = 2 }\n[sweep.grid]\n'
        (home / "sweep.toml").write_text(study + choice + '"local.learning_rate" = [0.1]\n', encoding="utf-8")
        codes = [
            command(capfd, "plan", home / "study.toml")[0],
            command(capfd, "plan", home / "sweep.toml")[0],
            command(capfd, "run", home / "study.toml", "--out", home / "run")[0],
        ]
        ends.append((codes, public(home / "run")))
    assert ends[0][0][:2] == [0, 0]
    assert ends[0] == ends[1] == ends[2]


def test_public_tables_are_there_without_test_records(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    files = _same(tmp_path_factory, "arrays", "federation", "test_share = 0.9")
    assert {"confusion.csv", "measures.csv", "reliability.csv"} <= {*files}


@every("form", FORMS)
def test_without_a_claim_a_client_without_records_is_an_error(form: str, tmp_path: Path) -> None:
    study = text("", form, extra="").replace("public_num_examples = 10\n", "")
    with pytest.raises(DataError):
        securefl.run(study, data=brought(form, "client", "none"), out=tmp_path, workers=1, progress=False)
