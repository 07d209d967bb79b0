"""`securefl predict`: a table of the study's kind goes in, a CSV in the table's own words comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.command_line import done, said
from support.every import every
from support.exported_cards import CARD, RECORDS, values
from support.own_study import NET, people, written
from support.tiny_study import FEDAVG

import securefl
from securefl.core.errors import ConfigError, DataError
from securefl.study import run_report
from securefl.training.exported import save

OWN = '[model]\nkind = "net:Net"\noptions = { width = 7 }\n'
LINEAR = '[model]\nkind = "mlp"\nhidden = []\n'
LG = '[[arm]]\nname = "LG"\nprotocol = "lg_fedavg"\n'
FEDLOG = '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\n'
HEADS = '[[arm]]\nname = "head"\nprotocol = "heads"\nhead = "ridge"\n'


pytestmark = pytest.mark.filterwarnings("ignore:An arm of Run:RuntimeWarning")


def refused(*words: object) -> str:
    found = said(*words)
    assert isinstance(found.exception, ConfigError | DataError), found.output
    return str(found.exception)


def exported(
    folder: Path, *, model: str = OWN, arm: str = FEDAVG, frame: pd.DataFrame | None = None, **data: str
) -> Path:
    """people.csv, a study of it in study.toml, run and exported, all in this folder."""
    frame = people(200) if frame is None else frame
    frame.to_csv(folder / "people.csv", index=False)
    (folder / "net.py").write_text(NET)
    text = written(model=model).replace('ignore = ["name"]', 'ignore = ["name", "hospital"]')
    for old, new in data.items():
        assert data[old] != "", old
        text = text.replace(old, new)
    head, _, _ = text.partition("[[arm]]")
    (folder / "study.toml").write_text(f"{head}{arm}")
    done("run", folder / "study.toml", "--out", folder / "out", "--workers", 1)
    return folder / "out"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of an own model with options, and its export."""
    folder = tmp_path_factory.mktemp("predict")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "figures", lambda *_: [])
        done("export", exported(folder), "--run-code", "-o", folder / "model.safetensors")
    return folder


@pytest.fixture
def here(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder with the files that a person has who wants predictions."""
    for name in ("model.safetensors", "net.py", "people.csv"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


PREDICT = ("predict", "model.safetensors", "people.csv", "-o", "out.csv", "--model", "net:Net")


def net() -> Any:
    names: dict[str, Any] = {}
    exec(NET, names)
    return names["Net"]


def test_a_table_by_an_own_model_with_its_options(here: Path) -> None:
    printed = done(*PREDICT, "--proba")
    made, frame = pd.read_csv("out.csv"), pd.read_csv("people.csv")
    model = securefl.load("model.safetensors", model=net())
    assert model.card["model"]["options"] == {"width": 7}
    assert made["prediction"].tolist() == model.predict(frame).tolist()
    assert list(made) == ["row", "prediction", "probability of no", "probability of yes"]
    assert made["row"].tolist() == list(range(1, 201))
    assert made.iloc[:, 2:].to_numpy() == pytest.approx(model.predict_proba(frame))
    assert "left out  'name', 'hospital', 'ill'" in printed
    assert f"accuracy  {model.score(frame, frame['ill']):.4f}" in printed


def test_json_is_all_that_it_prints(here: Path) -> None:
    told = json.loads(done(*PREDICT, "--json"))
    made = pd.read_csv("out.csv")["prediction"]
    assert told["labels"] == made.value_counts().to_dict()
    assert told["records"] == 200
    assert 0 <= told["accuracy"] <= 1
    assert told["file"] == "out.csv"


def test_labels_that_the_model_does_not_know_are_said_where_the_accuracy_would_stand(here: Path) -> None:
    frame = pd.read_csv("people.csv")
    frame.loc[[3, 5], "ill"] = "maybe"
    frame.to_csv("people.csv", index=False)
    printed = done(*PREDICT)
    assert "accuracy  not known: labels in the table that the model does not know: 'maybe' 2" in printed
    told = json.loads(done(*PREDICT, "--force", "--json"))
    assert told["unknown_labels"] == {"maybe": 2}
    assert "accuracy" not in told


def test_own_code_runs_only_if_it_is_named(here: Path) -> None:
    """The attack: a card that names code of this folder. Nothing of the card decides what is run."""
    Path("net.py").write_text("raise SystemExit('it was run')\n")
    assert "On the command line: --model module:name" in refused(*PREDICT[:-2])
    assert "Expected the code with which the model was trained, SHA-256" in refused(*PREDICT)
    with pytest.raises(ConfigError, match=r"load\(path, model="):
        securefl.load("model.safetensors")


def test_a_file_is_replaced_only_if_that_is_asked_for(here: Path) -> None:
    Path("out.csv").write_text("mine")
    assert "Name another, or replace it by --force" in refused(*PREDICT)
    assert Path("out.csv").read_text() == "mine"
    done(*PREDICT, "--force")
    assert Path("out.csv").read_text().startswith("row,prediction\n")
    before = Path("people.csv").read_bytes()
    for own in ("people.csv", "./people.csv"):
        words = ("predict", "model.safetensors", "people.csv", "-o", own, "--model", "net:Net", "--force")
        assert "another file than MODEL and TABLE" in refused(*words)
    assert Path("people.csv").read_bytes() == before
    assert "the ending .csv" in refused(*PREDICT[:4], "out.xlsx")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda f: f.drop(columns="dose"),
            "people.csv: records: expected a column 'dose', which the model reads",
        ),
        (
            lambda f: f.assign(sex="x"),
            "people.csv: records, row 1, column 'sex': expected one of 'f', 'm', got 'x'",
        ),
    ],
)
def test_a_table_that_does_not_fit_writes_nothing(
    change: Callable[[Any], Any], match: str, here: Path
) -> None:
    change(pd.read_csv("people.csv")).to_csv("people.csv", index=False)
    assert match in refused(*PREDICT)
    assert not Path("out.csv").exists()


def test_columns_in_another_order_and_more_of_them_change_nothing(here: Path) -> None:
    done(*PREDICT)
    frame = pd.read_csv("people.csv")
    frame[["ill", *reversed(list(frame)[:-1])]].assign(more="=1+1").to_csv("people.csv", index=False)
    before = Path("out.csv").read_bytes()
    done(*PREDICT, "--force")
    assert Path("out.csv").read_bytes() == before


def test_parquet_and_a_table_twice_named(here: Path) -> None:
    pytest.importorskip("pyarrow")
    done(*PREDICT)
    pd.read_csv("people.csv").to_parquet("people.parquet")
    done("predict", "model.safetensors", "people.parquet", "-o", "more.csv", "--model", "net:Net")
    assert Path("more.csv").read_bytes() == Path("out.csv").read_bytes()
    frame = pd.read_csv("people.csv", dtype=str)
    pd.concat([frame, frame[["sex"]]], axis=1).to_csv("people.csv", index=False)
    assert "got 'sex' twice" in refused(*PREDICT, "--force")


def test_labels_that_a_spreadsheet_would_run_are_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_report, "figures", lambda *_: [])
    frame = people(80).assign(ill=lambda own: np.where(own["ill"] == "no", "=1+1", "@x"))
    changed = {'["no", "yes"]': '["=1+1", "@x"]'}
    done(
        "export",
        exported(tmp_path, model=LINEAR, frame=frame, **changed),
        "--run-code",
        "-o",
        tmp_path / "m.safetensors",
    )
    done(
        "predict", tmp_path / "m.safetensors", tmp_path / "people.csv", "-o", tmp_path / "out.csv", "--proba"
    )
    made = pd.read_csv(tmp_path / "out.csv")
    assert set(made["prediction"]) <= {"'=1+1", "'@x"}
    assert set(securefl.load(tmp_path / "m.safetensors").predict(frame)) <= {"=1+1", "@x"}


@every(("arm", "client"), [(LG, 2), (FEDLOG, None), (HEADS, None)])
def test_personal_models_heads_and_fedlog_read_tables(
    arm: str, client: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_report, "figures", lambda *_: [])
    asked = {} if client is not None else {'non_private = ["update"]': 'non_private = ["statistic"]'}
    model = '[model]\nkind = "mlp"\nhidden = [4]\n' if client is not None else LINEAR
    out = exported(tmp_path, model=model, arm=arm, **asked)
    file = tmp_path / "m.safetensors"
    done("export", out, "--run-code", "-o", file, *(() if client is None else ("--client", client)))
    found = securefl.load(file).predict(people(30).drop(columns="ill"))
    assert set(found) <= {"no", "yes"}
    printed = done("predict", file, tmp_path / "people.csv", "-o", tmp_path / "out.csv")
    assert "records   200" in printed
    if client is not None:
        done("export", out, "--run-code", "-o", tmp_path / "shared.safetensors")
        shared = (
            "predict",
            tmp_path / "shared.safetensors",
            tmp_path / "people.csv",
            "-o",
            tmp_path / "s.csv",
        )
        assert "each client keeps the rest" in refused(*shared)


@every("name", ["model.pt", "model.pth", "model.pkl", "model.bin", "model", "model.h5"])
def test_a_file_of_another_kind_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    assert "ending .safetensors or .onnx" in refused("export", whole / "out", "-o", tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_python_refuses_another_kind_too(whole: Path, tmp_path: Path) -> None:
    run = securefl.run(whole / "study.toml", out=whole / "out", workers=1, progress=False)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        run.export(tmp_path / "model.pt")
    assert not list(tmp_path.iterdir())


def test_onnx_by_its_ending_gives_the_same_outputs(whole: Path, here: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    done("export", whole / "out", "--run-code", "-o", "model.onnx")
    model = securefl.load("model.safetensors", model=net())
    x = model.inputs(pd.read_csv("people.csv"))
    session = onnxruntime.InferenceSession("model.onnx")
    (found,) = session.run(["outputs"], {"x": x})
    assert np.abs(found - model.outputs(x)).max() < 1e-5
    card = json.loads(session.get_modelmeta().custom_metadata_map["securefl"])["card"]
    assert card["records"]["labels"] == ["no", "yes"]
    assert "Expected a model of the ending .safetensors, got model.onnx" in refused(
        "predict", "model.onnx", "people.csv", "-o", "p.csv"
    )


def test_labels_of_a_strangers_card_do_not_control_the_terminal(tmp_path: Path) -> None:
    card = {**CARD, "records": {**RECORDS, "labels": ["\x1b[2Ja", "\x1b[2Jb", "\x1b[2Jc"]}}
    save(tmp_path / "m.safetensors", values(), card)
    np.save(tmp_path / "x.npy", np.zeros((2, 6), np.float32))
    printed = done("predict", tmp_path / "m.safetensors", tmp_path / "x.npy", "-o", tmp_path / "out.csv")
    assert "records   2: " in printed
    assert "\x1b" not in printed


def test_a_regression_in_the_tables_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "figures", lambda *_: [])
    frame = people(200).assign(ill=lambda own: 1000 + own["age"] * 10)
    changed = {
        'classes = ["no", "yes"]': "classes = 0",
        "[data.columns]": "[data.columns]\nill = { range = [1000, 2000] }",
    }
    out = exported(tmp_path, model=LINEAR, frame=frame, **changed)
    done("export", out, "--run-code", "-o", tmp_path / "m.safetensors")
    done("predict", tmp_path / "m.safetensors", tmp_path / "people.csv", "-o", tmp_path / "out.csv")
    made = pd.read_csv(tmp_path / "out.csv")["prediction"]
    assert made.mean() > 500, "0.5 would be a value of the scaled target"
    run = securefl.run(tmp_path / "study.toml", out=tmp_path / "out", workers=1, progress=False)
    x, y = run.test_records()
    assert y.min() >= 1000
    assert run.model().predict(x).shape == y.shape
    assert "got a regression" in refused(
        "predict", tmp_path / "m.safetensors", tmp_path / "people.csv", "-o", tmp_path / "p.csv", "--proba"
    )
