"""Profiles of records of one's own: read as a study reads them, with bounds checked before anybody waits."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.every import every
from support.exported_cards import CARD, RECORDS, values
from support.matching_place import call, write

from securefl.commands.choices import chosen_options
from securefl.matching import Options, Profile
from securefl.matching.options import FLAGS
from securefl.training.exported import save

MODEL = '[model]\nkind = "mlp"\nhidden = [5]\n[weights]\noutputs = 2\nseed = 3\n'
COLUMNS = '[data.columns]\nage = { range = [0, 120] }\nsex = { categories = ["f", "m"] }\n'
FRAME = pd.DataFrame({"id": [1, 2, 3, 4], "sex": ["f", "m", "m", "f"], "age": [61, 30, 45, 90]})
CODE = "import torch\nfrom securefl.data import Dataset\n\ndef load():\n    return {}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.toml").write_text(MODEL)
    Path("table.toml").write_text(MODEL + COLUMNS)
    return tmp_path


def profiled(data: str, model: str, code: int = 0) -> str:
    Path("p.json").unlink(missing_ok=True)
    told = call("profile", "--data", data, "--model", model, "-o", "p.json", code=code)
    assert Path("p.json").exists() == (not code)
    return told


def found() -> dict[str, object]:
    return dict(json.loads(Path("p.json").read_text()))


def test_each_form_of_the_same_records_has_one_profile(here: Path) -> None:
    FRAME.to_csv("d.csv", index=False)
    FRAME[["age", "sex", "id"]].to_parquet("d.parquet")
    Path("mine.py").write_text(CODE.format(FRAME.to_dict("records")))
    seen = []
    for data in ("d.csv", "d.parquet", "mine:load"):
        profiled(data, "table.toml")
        seen.append(found())
    assert seen[0] == seen[1] == seen[2], "columns are found by name, and others are left out"
    x = np.array([[61 / 120, 1, 0], [30 / 120, 0, 1], [45 / 120, 0, 1], [90 / 120, 1, 0]], np.float32)
    np.save("d.npy", x)
    np.savez("d.npz", x=x)
    Path("mine.py").write_text(CODE.format(f"torch.tensor({x.tolist()}, requires_grad=True), None"))
    seen = [found() for data in ("d.npy", "d.npz", "mine:load") if profiled(data, "m.toml")]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0]["count"] == 4
    profiled("d.csv", "table.toml")
    assert found()["mean"] == pytest.approx(seen[0]["mean"], rel=1e-6)
    assert found()["model"] != seen[0]["model"], "which columns it reads is a part of the model"


def test_a_model_is_own_code_or_an_exported_file(here: Path) -> None:
    Path("net.py").write_text(
        "from torch import nn\n\nclass Net(nn.Sequential):\n    def __init__(self, inputs, outputs):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(inputs, 7), nn.ReLU(), nn.Linear(7, outputs))\n"
    )
    Path("net.toml").write_text('[model]\nkind = "net:Net"\n[weights]\noutputs = 10\nshape = [1, 8, 8]\n')
    assert "7 elements of 1 over 1258 records" in profiled("digits", "net.toml")
    Path("net.toml").chmod(0o666)  # whoever can write it names the code that is run
    assert "--trust-code" in profiled("digits", "net.toml", code=1)
    names = [{"name": name} for name in "abcde"] + [{"name": "f", "range": [0, 2]}]
    save(Path("m.safetensors"), values(), {**CARD, "records": {**RECORDS, "columns": names}})
    table = pd.DataFrame(np.eye(6) * 2, columns=list("abcdef"))
    table.assign(target=0)[["target", *"fedcba"]].to_csv("d.csv", index=False)
    assert "4 elements of fc1 over 6 records" in profiled("d.csv", "m.safetensors")
    x = np.eye(6, dtype=np.float32) * [2, 2, 2, 2, 2, 1]
    weights = values()
    assert found()["mean"] == pytest.approx(
        (x @ weights["fc1.weight"].T + weights["fc1.bias"]).mean(0), rel=1e-5
    )
    call("anchor", "--model", "m.safetensors", "-o", "a.json")
    anchor = json.loads(Path("a.json").read_text())
    assert (anchor["model"], len(anchor["mean"])) == (found()["model"], 4)
    save(Path("m.safetensors"), values(), CARD)  # it was trained on arrays, and reads a table by place
    Path("d.csv").write_text("1.5,2,3,4,5,6\n" * 2)
    assert "looks like a record: '1.5', '2'" in profiled("d.csv", "m.safetensors", code=1)


BAD = {
    "no header": ("d.csv", "61,f\n30,m\n", "expected a column 'age', which the model reads, got none"),
    "text in a column": (
        "d.csv",
        "age,sex\nold,f\n",
        "row 1, column 'age': expected a finite number, got 'old'",
    ),
    "another word": ("d.csv", "age,sex\n61,x\n", "expected one of 'f', 'm', got 'x'"),
    "nan": ("d.csv", "age,sex\nnan,f\n", "row 1, column 'age': expected a number, got 'nan'"),
    "no record": ("d.csv", "age,sex\n", "expected at least one record, got none"),
    "a column less": ("d.csv", "age\n61\n", "expected a column 'sex'"),
    "a column twice": ("d.csv", "age,age,sex\n1,2,f\n", "'age' twice"),
}


@every("what", BAD)
def test_bad_tables_are_refused_by_file_and_place(what: str, here: Path) -> None:
    name, text, said = BAD[what]
    Path(name).write_text(text)
    told = profiled(name, "table.toml", code=1)
    assert told.startswith(name)
    assert said in told


def test_other_bad_records_are_refused(here: Path) -> None:
    FRAME.to_csv("d.csv", index=False)
    told = profiled("d.csv", "m.toml", code=1)
    assert "[data.columns]\nid = {}\nsex = {}\nage = {}\n" in told
    Path("d.csv").write_text("0.5,1.5\n2.5,3.5\n")
    assert "looks like a record: '0.5', '1.5'" in profiled("d.csv", "m.toml", code=1)
    np.savez("d.npz", x=np.array([{}], object))
    assert "without pickles" in profiled("d.npz", "m.toml", code=1)
    Path("d.npz").write_bytes(pickle.dumps([1]))
    assert "without pickles" in profiled("d.npz", "m.toml", code=1)
    np.savez("d.npz", x=np.full((3, 4), np.nan))
    assert "not finite" in profiled("d.npz", "m.toml", code=1)
    Path("mine.py").write_text(CODE.format("1 / 0"))
    assert "mine:load: expected records, got ZeroDivisionError" in profiled("mine:load", "m.toml", code=1)
    Path("m.toml").write_text(MODEL + "shape = [9]\n")
    np.save("d.npy", np.ones((3, 4)))
    assert "expected records of shape (9,), got (4,)" in profiled("d.npy", "m.toml", code=1)
    for table, said in (("age = 3", "[data] `columns`"), ("age = { size = 3 }", "Unknown key `size`")):
        Path("m.toml").write_text(f"{MODEL}[data.columns]\n{table}\n")
        assert said in profiled("d.npy", "m.toml", code=1)
    Path("m.toml").write_text(MODEL)
    assert "Write shape = [4] under [weights]" in call("anchor", "--model", "m.toml", "-o", "a", code=1)
    np.save("d.npy", np.ones((3, 0)))
    assert profiled("d.npy", "m.toml", code=1).startswith("d.npy: expected records of one number or more")


def test_a_profile_that_no_match_takes_is_told_at_once_with_flags_and_an_anchor_that_work(here: Path) -> None:
    """Two hospitals had encrypted before the match was refused."""
    Path("flat.csv").write_text("age,sex\n" + "61,f\n62,f\n" * 5)  # sex is constant
    told = profiled("flat.csv", "table.toml")
    assert "A baseline like it would be refused" in told
    assert "securefl anchor --model table.toml" not in told, "it was tried: the anchor is not near enough"
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(50, 9, 200).round(), "sex": rng.choice(["f", "m"], 200)})
    table.to_csv("d.csv", index=False)
    told = profiled("d.csv", "table.toml")
    assert "Expected a baseline of weights up to --weight-bound 32, got" in told
    flags = told.split("Give all parties ")[1].split(", or a public --anchor")[0].split()
    assert flags[:2] == ["--params", "pads"]
    assert "securefl anchor --model table.toml" in told
    call("anchor", "--model", "table.toml", "-o", "a.json")
    call("keygen", "--role", "key-holder", "--out", "K")
    call("keygen", "--role", "evaluator", "--out", "V")
    keys = ("--public", "K/public.key", "--evaluator")
    assert "would be refused" in call(
        "encrypt", *keys, "V/evaluator.pub", "--profile", "p.json", "-o", "p.enc"
    )
    for more in (flags, ["--anchor", "a.json"]):
        told = call("encrypt", *keys, "V/evaluator.pub", "--profile", "p.json", "-o", "p.enc", *more)
        assert "refused" not in told
        call("match", *keys, "V/evaluator.key", "--baseline", "p.json", "p.enc", "-o", "s.enc")
        scores = call(
            "reveal", "--secret", "K/secret.key", "--evaluator", "V/evaluator.pub", "s.enc", "--json"
        )
        assert abs(json.loads(scores)["scores"]["p"]) < 0.01
    # of another model, of the same width
    Path("other.toml").write_text(MODEL.replace("seed = 3", "seed = 4") + COLUMNS)
    profiled("d.csv", "other.toml")
    words = ("encrypt", *keys, "V/evaluator.pub", "--profile", "p.json", "-o", "p.enc")
    assert "the same model" in call(*words, "--anchor", "a.json", code=1)
    declared = ("--baseline", "a.json", "-o", "declared.pub", "--weight-bound", 64)
    call("declare", *keys, "V/evaluator.key", *declared)
    assert "the same model" in call(*words, "--declared", "declared.pub", code=1)
    write(Path("p.json"), ([0.0], [1.0]))
    assert "of 5 elements, as was declared, got 1" in call(*words, "--declared", "declared.pub", code=1)


def test_flags_that_are_named_were_tried() -> None:
    for own in (
        Profile([900.0, 3.0], [1e4, 2e4]),
        Profile([0.0] * 9, [1e-4] * 9),
        Profile([1e15] * 2, [1e-3] * 2),
    ):
        told = Options().way_on(own)
        words = told.split("Give all parties ")[1].split(",")[0].split()
        named = dict(zip(words[::2], words[1::2], strict=False)) if words[0] == "--params" else {}
        assert bool(named) == (own.mean[0] < 1e15)
        if named:
            params = named.pop("--params")
            bounds = {name: float(named[flag]) for name, flag in FLAGS.items() if flag in named}
            options = chosen_options(None, None, params, None, **bounds)  # type: ignore[arg-type]
            assert options is not None
            options.query(own)
            assert options.features(own).clipped == 0
            assert options.error_bound(len(own), 10) > 0
