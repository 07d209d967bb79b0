"""Several labels of a record, and targets that arrays bring in units, from the records to predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score
from support.command_line import done, said
from support.every import every
from support.own_study import written
from support.private_studies import DPSGD
from support.tiny_study import run as run_first
from support.tiny_study import with_privacy
from torch.nn.functional import binary_cross_entropy_with_logits

import securefl
from securefl.core.errors import ConfigError, DataError
from securefl.data import Dataset
from securefl.study import world
from securefl.study.config import Brought, Study, parse
from securefl.training.losses import losses_of

DATA = """
[data]
source = "finds.csv"
target = ["cough", "fever"]
classes = ["no", "yes"]
clients = 4
partition = { kind = "iid" }
columns = { a = { range = [-3, 3] }, b = { range = [-3, 3] } }
"""
MLP = '[model]\nkind = "mlp"\nhidden = [6]\n'
ARRAYS = "\n[data]\nclasses = 2\nclients = 4\npartition = { kind = 'iid' }\n"
pytestmark = pytest.mark.filterwarnings("ignore:An arm of Run:RuntimeWarning")


def finds(n: int = 240) -> pd.DataFrame:
    """Two labels of each record, each of which follows from a column of its own."""
    a, b = np.random.default_rng(0).uniform(-3, 3, (2, n)).round(3)
    words = [np.where(own > 0, "yes", "no") for own in (a, b)]
    return pd.DataFrame({"a": a, "b": b, "cough": words[0], "fever": words[1]})


def arrays(n: int = 240) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    table = finds(n)
    return table[["a", "b"]].to_numpy(np.float32), (table[["cough", "fever"]] == "yes").to_numpy(np.int64)


def text(data: str = DATA, *, extra: str = "", rounds: int = 2, **privacy: str) -> str:
    whole = written(data=data, model=MLP, extra=extra, rounds=rounds)
    return with_privacy(whole, privacy).replace("batch_size = 48", "batch_size = 8")


def test_from_a_table_to_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finds().to_csv("finds.csv", index=False)
    proposed = done("data", "describe", "finds.csv", "--target", "cough", "--target", "fever", "--public")
    assert 'target = ["cough", "fever"]\nclasses = ["no", "yes"]' in proposed
    Path("study.toml").write_text(text(rounds=12).replace("learning_rate = 0.2", "learning_rate = 1.0"))
    assert "Each record has 2 labels" in said("plan", "study.toml").output
    done("run", "study.toml", "--out", "out", "--workers", 1)
    summary = json.loads(Path("out/summary.json").read_text())
    assert "of which all labels are right" in summary["accuracy"]
    assert "of which all labels are right" in Path("out/report.html").read_text()
    done("export", "out", "-o", "model.safetensors")
    model = securefl.load("model.safetensors")
    new = finds(60)
    found, words = model.predict(new), new[["cough", "fever"]].to_numpy()
    assert found.shape == (60, 2)
    assert {*found.ravel()} == {"no", "yes"}
    accuracy = model.score(new, words)
    assert accuracy == accuracy_score(words == "yes", found == "yes") > 0.8
    assert ((model.predict_proba(new) > 0.5) == (found == "yes")).all()
    new.to_csv("new.csv", index=False)
    told = done("predict", "model.safetensors", "new.csv", "-o", "predicted.csv", "--proba")
    assert f"accuracy  {accuracy:.4f} against the labels in the table" in told
    assert f"cough = yes {(found[:, 0] == 'yes').sum()}" in told
    made = pd.read_csv("predicted.csv")
    assert [*made] == [
        "row",
        *("prediction of cough", "prediction of fever"),
        *("probability of cough", "probability of fever"),
    ]
    run = securefl.run("study.toml", out="out", progress=False)
    x, y = run.test_records()
    assert model.score(pd.DataFrame(x * 6 - 3, columns=["a", "b"]), y) == model.card["accuracy"]


def losses(study: Study, out: Path) -> list[float]:
    return [record["loss"] for record in run_first(study, out).records]


@every(
    "privacy",
    [
        {},
        {"sum": '"masked"', "dropout": "0.0", "corrupt": "0.0"},
        {
            "unit": '"client"',
            "adjacency": '"zero-out"',
            "noise": '"central"',
            "epsilon": "8.0",
            "delta": "1e-2",
            "adversaries": '["others"]',
            "non_private": "[]",
            "force_delta": "true",
        },
    ],
)
def test_under_masks_and_noise_it_is_a_loss_of_the_record(tmp_path: Path, privacy: dict[str, str]) -> None:
    whole = text(**privacy).replace("fraction = 0.5", "fraction = 1.0")
    if "epsilon" in privacy:
        whole = whole.replace("batch_size = 8", "batch_size = 8\nupdate_bound = 1.0")
        whole = whole.replace("clients = 4", "clients = 4\npublic_num_examples = 40")
    finds().to_csv(tmp_path / "finds.csv", index=False)
    study = parse(whole, home=tmp_path)
    assert world.build(study, 3).problem.loss == "binary_cross_entropy"
    assert np.isfinite(losses(study, tmp_path / "out")).all()


def test_with_privacy_per_record_a_damaged_label_counts_as_zero(tmp_path: Path) -> None:
    table = finds()
    table.loc[5, "fever"] = "perhaps"
    table.to_csv(tmp_path / "finds.csv", index=False)
    finds().to_csv(tmp_path / "tests.csv", index=False)  # else a secret key may test on the damaged record
    private = {"adjacency": '"add-remove"', "non_private": "[]", "budget": "100.0"}
    whole = text(extra=DPSGD, **private).replace(
        "clients = 4", 'clients = 4\ntest = "tests.csv"\npublic_num_examples = 60'
    )
    here = world.build(parse(whole, home=tmp_path), 3)
    assert here.problem.kind == "multi-label"
    assert sum(int(np.isnan(y).any(1).sum()) for _, y in here.records) == 1
    assert np.isfinite(losses(parse(whole, home=tmp_path), tmp_path / "out")).all()
    with pytest.raises(DataError, match=r"row 6, column 'fever': expected one of 'no', 'yes', got 'perhaps'"):
        world.build(parse(text(), home=tmp_path), 3)


def test_the_loss_is_torch_s_mean_over_the_labels() -> None:
    outputs = torch.randn((5, 3), generator=torch.Generator().manual_seed(0))
    y = (outputs > 0.3).float()
    expected = binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(1)
    torch.testing.assert_close(losses_of(outputs, y, "binary_cross_entropy"), expected)


def test_arrays_have_a_column_for_each_label() -> None:
    x, y = arrays()
    for own in (y, y.astype(bool), y.astype(np.float32)):
        here = world.build(parse(text(ARRAYS), brought=Brought(data=(x, own))), 3)
        assert (here.problem.kind, here.problem.outputs) == ("multi-label", 2)
        assert {*np.unique(np.concatenate([y for _, y in here.records]))} == {0.0, 1.0}
    wrong = np.eye(3, dtype=np.int64)[np.arange(240) % 3]
    with pytest.raises(DataError, match=r"take y.argmax\(1\); several labels of a record have classes = 2"):
        world.build(parse(text(ARRAYS.replace("= 2", "= 3")), brought=Brought(data=(x, wrong))), 3)
    whole = text(ARRAYS.replace("= 2", "= 3"))
    assert world.build(parse(whole, brought=Brought(data=(x, wrong.argmax(1)))), 3).problem.outputs == 3
    of_loader = Dataset(name="mine", x=x, y=y.astype(np.float32), classes=0, multi_label=True)
    here = world.build(parse(text(ARRAYS.replace("classes = 2\n", "")), brought=Brought(data=of_loader)), 3)
    assert here.problem.kind == "multi-label"
    with pytest.raises(DataError, match="labels of 0 and 1"):
        Dataset(name="mine", x=x, y=y.astype(np.float32) / 2, classes=0, multi_label=True)


def test_targets_of_several_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"or several with two classes each, got 2 columns and 3 classes"):
        parse(text(DATA.replace('["no", "yes"]', '["no", "some", "yes"]')))


# Targets of arrays ------------------------------------------------------------------------------------

SCALED = """
[data]
target = ["price", "rooms"]
classes = 0
clients = 4
partition = { kind = "iid" }
columns = { price = { range = [0, 1e6] }, rooms = { range = [0, 10] } }
"""


def test_targets_of_arrays_have_ranges_as_columns_have(tmp_path: Path) -> None:
    x, _ = arrays()
    y = np.column_stack([(x[:, 0] + 3) * 1e5, x[:, 1] + 3])
    study = parse(text(SCALED), brought=Brought(data=(x, y)))
    here = world.build(study, 3)
    trained = np.concatenate([y for _, y in here.records])
    assert 0 <= trained.min() <= trained.max() <= 1
    run = securefl.run(text(SCALED), data=(x, y), out=tmp_path / "out")
    _, units = run.test_records()
    assert units[:, 0].max() > 1e5
    model = securefl.load(run.export(tmp_path / "model.safetensors"))
    assert model.predict(x[:5]).shape == (5, 2)
    assert [one.range for one in model.about.records.targets] == [(0, 1e6), (0, 10)]
    with pytest.raises(DataError, match=r"expected y of shape \(n, 2\), one column for each `target`"):
        world.build(parse(text(SCALED), brought=Brought(data=(x, y[:, :1]))), 3)
    with pytest.raises(ConfigError, match="arrays, which have no columns but their targets"):
        world.build(
            parse(text(SCALED.replace("columns = {", "columns = { a = {}, ")), brought=Brought(data=(x, y))),
            3,
        )


def test_a_plan_names_targets_of_arrays_that_no_range_scales() -> None:
    x, _ = arrays()
    y = np.column_stack([x[:, 0] * 1e5, x[:, 1]])
    bare = parse(text(ARRAYS.replace("= 2", "= 0")), brought=Brought(data=(x, y)))
    assert any("y[:, 0]" in note and "without scaling" in note for note in world.build(bare, 3).marks.notes)
