"""docs/own-data.md: its study, its model and its calls from Python run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import own_table
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_digits
from support.tiny_study import run

from securefl.commands.main import cli
from securefl.study import run_report, world
from securefl.study.config import parse, read
from securefl.study.packaged import text_of

pytestmark = pytest.mark.docs

PAGE = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")
TABLE, NET, STUDY, PREDICTED, SITES, FEATURES, CALLS = re.findall(
    r"^```(?:csv|py|toml)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE
)


def test_the_study_runs(tmp_path: Path) -> None:
    (tmp_path / "patients.csv").write_text(TABLE)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "my.toml").write_text(STUDY.replace("rounds = 20", "rounds = 1"))
    study = read(tmp_path / "my.toml")
    here = world.build(study, 0)
    assert len(run(study, tmp_path / "out", here=here).records) == 1
    assert (here.problem.clients, here.problem.shape) == (3, (5,))


def test_files_of_other_programs_are_read_as_written(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for name, labels in (("north", ("no", "yes")), ("south", (1, 2))):
        rows = [f"{dose},5;{dose if dose % 4 else '?'};{labels[dose % 2]}" for dose in range(20)]
        text = "\n".join(["größe;alter;ill", *rows])
        (tmp_path / "sites" / f"{name}.csv").write_text(text, encoding="cp1252")
    declared = SITES + "[data.columns]\nalter = { missing = 50 }\n[model]"
    head, _, rest = STUDY.partition("[data]")
    study = parse(
        head
        + declared
        + rest.partition("[model]")[2]
        .replace("net:Net", "mlp")
        .replace("options = { width = 8 }", "hidden = [8]"),
        home=tmp_path,
    )
    here = world.build(study, 0)
    assert (here.problem.clients, here.problem.shape) == (2, (2,))


def test_the_calls_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    head, _, rest = STUDY.replace("rounds = 20", "rounds = 1").partition("[data]")
    text = head + "[data]\nclasses = 2\n[local]" + rest.partition("[local]")[2]
    names: dict[str, Any] = {"TEXT": text}
    run_as_written(NET + CALLS, names)
    assert names["run"].report().is_file()
    assert len(names["run"].metrics) == 1


def test_features_are_read_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = load_digits(return_X_y=True)
    np.savez("digits.npz", x=x / 16, y=y, network=np.array("none"))
    text = text_of("heads_digits").partition("[sweep.grid]")[0]
    text = text.replace('source = "digits"', 'source = "digits.npz"\nclasses = 10\npublic_num_examples = 60')
    assert world.build(parse(text, home=tmp_path), 1).problem.shape == (64,)
    Path("digits.npz").rename("cifar10.npz")
    with np.load("cifar10.npz") as file:
        np.savez("cifar10-test.npz", **file)
    head, _, rest = text.partition("[data]")
    here = world.build(parse(head + FEATURES + "[model]" + rest.partition("[model]")[2], home=tmp_path), 1)
    assert len(here.problem.server_x) == 1797


def run_as_written(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "docs/own-data.md", "exec"), names)


def test_the_table_is_one_that_it_describes(tmp_path: Path) -> None:
    assert TABLE.splitlines()[0] == "age,sex,dose,hospital,ill"
    (tmp_path / "patients.csv").write_text(TABLE)
    assert parse(STUDY, home=tmp_path).data.layout.target == ("ill",)


def test_a_table_becomes_predictions_by_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page names the commands that the benchmark types, and its study; here on fewer records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_report, "figures", lambda *_: [])
    assert "".join(f"securefl {words}\n" for words in own_table.COMMANDS) in PAGE
    own_table.write(tmp_path, 3_000, 8.0)  # fewer records carry less noise
    assert "`examples/loans.toml` is such a study" in PAGE
    own_table.tables(tmp_path / "loans")
    assert {one.name for one in (tmp_path / "loans").iterdir()} == {"loans.csv", "new.csv", "loans.toml"}
    for words in own_table.COMMANDS:
        done = CliRunner().invoke(cli, words.split(), catch_exceptions=False)
        assert done.exit_code == 0, done.output
    found = own_table.figures(tmp_path)
    assert found["securefl"] > found["the most frequent label"], "a model of noise would not learn this"
    assert list(pd.read_csv("predicted.csv")) == [
        "row",
        "prediction",
        "probability of no",
        "probability of yes",
    ]
    names: dict[str, Any] = {}
    run_as_written(PREDICTED, names)
    assert names["labels"].tolist() == pd.read_csv("predicted.csv")["prediction"].tolist()
    assert names["accuracy"] == found["securefl"]
    assert names["shares"].sum(1) == pytest.approx(np.ones(600))
