"""A new user's own records and own model: planned, run, gone on with, reported and swept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.command_line import said
from support.every import every
from support.outside import installed
from support.own_study import DATA, MODEL, NET, folder, people, written
from support.private_studies import DPSGD
from support.tiny_study import run as run_first
from torch import nn

from securefl.commands.exit_codes import ExitCode
from securefl.core.errors import ConfigError, DataError, SecureFLError
from securefl.data import Dataset
from securefl.study import session, world
from securefl.study.config import Brought, RuntimeSection, Study, origin_of, parse, read
from securefl.sweep.cells import claim, parse_sweep

ARRAYS = "\n[data]\nclasses = 2\nclients = 4\npartition = { kind = 'iid' }\n"


def run(study: Study, out: Path) -> list[float]:
    """The accuracy after each round."""
    return [record["accuracy"] for record in run_first(study, out).records]


def test_a_csv_and_a_model_beside_the_study(tmp_path: Path) -> None:
    study, out = folder(tmp_path / "mine"), tmp_path / "out"
    planned = said("plan", study)
    assert planned.exit_code == 0, planned.output
    assert f"The model comes from net:Net in {tmp_path / 'mine' / 'net.py'} (SHA-256 " in planned.output
    assert "'dose': numbers used without scaling" in planned.output
    assert "4 clients" in planned.output
    done = said("run", study, "--out", out)
    assert done.exit_code == ExitCode.UNLEARNT, done.output  # two rounds teach it nothing
    versions = json.loads((out / "versions.json").read_text())
    assert versions["data"] == "people.csv"
    assert "net:Net in" in versions["code of the model"]
    # The run folder knows where the records are.
    again = said("report", out, "--out", tmp_path / "page", "--run-code")
    assert again.exit_code == ExitCode.UNLEARNT, again.output
    assert len(run(read(out / "study.toml"), out)) == 2


def test_a_run_does_not_go_on_with_other_records_or_another_model(tmp_path: Path) -> None:
    path, out = folder(tmp_path / "mine"), tmp_path / "out"
    run(read(path), out)
    (tmp_path / "mine" / "net.py").write_text(NET + "# changed\n", encoding="utf-8")
    with pytest.raises(DataError, match="other code"):
        run(read(path), out)
    (tmp_path / "mine" / "net.py").write_text(NET, encoding="utf-8")
    assert len(run(read(path), out)) == 2
    people(61).drop(columns="hospital").to_csv(tmp_path / "mine" / "people.csv", index=False)
    with pytest.raises(DataError, match="begun with other records"):
        run(read(path), out)


def test_a_run_does_not_go_on_with_another_helper_of_its_model(tmp_path: Path) -> None:
    path, out = folder(tmp_path / "mine", rounds=1), tmp_path / "out"
    (tmp_path / "mine" / "net.py").write_text(
        "from widths import W\n" + NET.replace("=4", "=W"), encoding="utf-8"
    )
    (tmp_path / "mine" / "widths.py").write_text("W = 4\n", encoding="utf-8")
    run(read(path), out)
    (tmp_path / "mine" / "widths.py").write_text("W = 5\n", encoding="utf-8")
    with pytest.raises(DataError, match="other values and layers"):
        run(read(path), out)


def test_a_test_part_in_a_file_of_its_own(tmp_path: Path) -> None:
    path = folder(tmp_path, data=DATA.replace("clients", 'test = "later.csv"\nclients'))
    people(9, seed=1).drop(columns=["hospital", "name"]).to_csv(tmp_path / "later.csv", index=False)
    here = world.build(read(path), 3)
    assert len(here.problem.server_x) == 9
    assert sum(len(x) for x, _ in here.records) == 60


def test_notes_that_follow_from_records_are_private_in_a_plan(tmp_path: Path) -> None:
    path = folder(tmp_path, extra=DPSGD, data=DATA.replace("[data]\n", "[data]\npublic_num_examples = 15\n"))
    table = people().drop(columns="hospital")
    table.loc[3, "ill"] = "perhaps"
    table.to_csv(tmp_path / "people.csv", index=False)
    found = said("plan", path, "--json")
    assert found.exit_code == 0, found.output
    plan = json.loads(found.stdout)
    assert any("Unusable records, 1" in note for note in plan["private"]["notes"])
    assert not any("nusable" in note for note in plan["notes"])
    assert "are for the person at this machine" in said("plan", path).stderr


def test_records_of_clients_set_apart_are_the_test_part(tmp_path: Path) -> None:
    data = (
        '[data]\nsource = "people.csv"\ntarget = "ill"\nclasses = ["no", "yes"]\nignore = ["name", "sex"]\n'
        'client_column = "hospital"\ntest_clients = 1\n'
    )
    path = folder(tmp_path, data=data)
    people().to_csv(tmp_path / "people.csv", index=False)
    here = world.build(read(path), 3)
    assert here.problem.clients == 2
    assert len(here.problem.server_x) + sum(len(x) for x, _ in here.records) == 60


class Own(nn.Module):
    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape[0], 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, outputs))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def arrays() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    return x, (x.sum(1) > 0).astype(np.int64)


def brought(data: object = None, model: Any = Own, text: str = ARRAYS) -> Study:
    return parse(written(data=text, model=""), brought=Brought(data=data or arrays(), model=model))


def test_arrays_and_a_model_from_python(tmp_path: Path) -> None:
    session.run_study(brought(), tmp_path / "one", lambda arm, seed, record: None)
    first = run(brought(), tmp_path / "one")
    alone = replace(brought(), runtime=RuntimeSection(workers=1))
    assert run(alone, tmp_path / "two") == first, "dropout drew from somewhere else"
    _, page = session.reopen(tmp_path / "one", brought=brought().brought)
    assert page.is_file()
    with pytest.raises(ConfigError, match="handed over in Python"):
        session.reopen(tmp_path / "one")


def test_what_is_brought_must_be_brought_again(tmp_path: Path) -> None:
    x, y = arrays()
    run(brought(), tmp_path)
    with pytest.raises(DataError, match="begun with other records"):
        run(brought((x + 1, y)), tmp_path)
    with pytest.raises(DataError, match="other code that makes the model"):
        run(brought(model=lambda inputs, outputs: nn.Linear(inputs, outputs)), tmp_path)


def test_a_packaged_source_cannot_take_the_place_of_brought_records(tmp_path: Path) -> None:
    text = written(data='[data]\nsource = "digits"\nclients = 4\npartition = {kind = "iid"}\n', model="")
    own = parse(text.replace("[local]", '[model]\nkind = "mlp"\n[local]'), brought=Brought(data=_digits()))
    run(own, tmp_path)
    with pytest.raises(DataError, match="begun with other records"):
        run(parse(own.text), tmp_path)


def _digits() -> Dataset:
    x, y = arrays()
    return Dataset(name="mine", x=x.astype(np.float32), y=y, classes=2)


@pytest.mark.slow
def test_a_sweep_finds_the_folder_of_its_study(tmp_path: Path) -> None:
    path = folder(tmp_path / "mine", rounds=1)
    path.write_text(path.read_text() + '\n[sweep.grid]\n"local.learning_rate" = [0.1, 0.2]\n')
    done = said("sweep", path, "--out", tmp_path / "out", "--workers", 1)
    assert done.exit_code == ExitCode.UNLEARNT, done.output  # one round teaches it nothing
    assert "2 of 2 cells are finished." in done.output
    assert len(pd.read_csv(tmp_path / "out" / "results.csv")) == 2
    again = said("sweep", tmp_path / "out" / "sweep.toml", "--out", tmp_path / "out")
    assert again.exit_code == ExitCode.UNLEARNT, again.output


def test_the_cells_of_a_sweep_have_the_folder_of_its_study(tmp_path: Path) -> None:
    path = folder(tmp_path / "mine")
    text = path.read_text() + '\n[sweep.grid]\n"local.learning_rate" = [0.1, 0.2]\n'
    sweep = parse_sweep(text, home=path.parent)
    claim(tmp_path / "out", sweep)
    assert origin_of(tmp_path / "out" / "sweep.toml")[0] == path.parent
    for cell in sweep.cells:
        assert world.build(cell.study, 3).problem.clients == 4


LOADER = """
import numpy as np
from torch import nn

def load(seed):
    x = np.random.default_rng(seed).normal(size=(40, 3))
    return [(x[:20], x[:20].sum(1)), (x[20:], x[20:].sum(1))]

def net(inputs, outputs):
    return nn.Linear(inputs, outputs)
"""
POINTS = {"securefl.data": "theirs = theirs:load", "securefl.models": "their_net = theirs:net"}


@pytest.mark.parametrize("names", [("theirs", "their_net"), ("theirs:load", "theirs:net")])
def test_an_installed_package_brings_both(tmp_path: Path, names: tuple[str, str]) -> None:
    data, model = f'\n[data]\nsource = "{names[0]}"\n', f'[model]\nkind = "{names[1]}"\n'
    with installed(tmp_path / "site", {"theirs.py": LOADER}, POINTS):
        assert "theirs" in said("data", "list").output
        study = parse(written(data=data, model=model))
        here = world.build(study, 3)
        assert (here.problem.clients, here.problem.kind) == (2, "regression")
        assert any("may compute statistics over all records" in note for note in here.marks.notes)


@every(
    ("data", "message"),
    [
        ('source = "../mine"', "people.csv|expected a file for each client"),
        ('source = "elsewhere:load"', "A study runs code from no other place"),
        ('source = "net:nothing"', "Expected 'nothing' in .*net.py, got none"),
        ('source = "net:nn"', "Expected net:nn to be a function"),
        ('source = "net:Net"', "expected records from this function, got TypeError"),
        ('source = "people.csv"', "expected `target` under"),
        ('source = "people.csv"\ntarget = "ill"', "expected `classes` under"),
        ('source = "people.csv"\ntarget = "ill"\nclasses = 1', "Expected 2 to 100,000 classes"),
        ('source = "people.csv"\ntarget = "ill"\nignore = ["ill"]', "'ill' as target, client or ignored"),
        ('source = "digits"\ntarget = "ill"', "Expected no `target` for the packaged data set"),
        ('source = "people.csv"\ntest_share = 1.0', "Expected test_share in"),
        ('source = "people.csv"\ncolumns = { age = { rnage = [0, 1] } }', "did you mean `range`"),
        ('source = "people.csv"\ntest = "none.csv"', "Expected a file at .*none.csv"),
    ],
)
def test_a_section_that_cannot_be_used(tmp_path: Path, data: str, message: str) -> None:
    section = f"\n[data]\nclients = 4\npartition = {{ kind = 'iid' }}\n{data}\n"
    path = folder(tmp_path / "mine", data=section)
    with pytest.raises(SecureFLError, match=message) as error:
        world.build(read(path), 3)
    assert "Traceback" not in str(error.value)


def test_records_that_say_nothing_of_clients_need_a_partition(tmp_path: Path) -> None:
    path = folder(tmp_path, data=ARRAYS.replace("partition = { kind = 'iid' }", "source = 'net:load'"))
    (tmp_path / "net.py").write_text(
        NET + "def load():\n    return [[float(k)] for k in range(18)], [0, 1] * 9\n"
    )
    with pytest.raises(ConfigError, match=r"Divide it under \[data\]"):
        world.build(read(path), 3)


def test_a_text_without_a_file_has_no_paths() -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        parse(written(data="\n[data]\nsource = 'people.csv'\n", model=MODEL))


def test_statistics_over_all_records_are_refused_where_they_are_said() -> None:
    x, y = arrays()
    own = Dataset(name="mine", x=x.astype(np.float32), y=y, classes=2, fitted="a mean over all records")
    text = written(data=ARRAYS, model="").replace('noise = "none"', 'noise = "local"\nepsilon = 4.0')
    text = text.replace('non_private = ["update"]', "non_private = []").replace(
        "budget = inf", "budget = 4.0"
    )
    with pytest.raises(ConfigError, match="a mean over all records"):
        world.build(parse(text, brought=Brought(data=own, model=Own)), 3)


def test_a_public_file_is_described_as_a_study_reads_it(tmp_path: Path) -> None:
    people().assign(age=[None, *people()["age"][1:]]).to_csv(tmp_path / "people.csv", index=False)
    words = ("data", "describe", tmp_path / "people.csv", "--target", "ill", "--client-column", "hospital")
    refused = said(*words)
    assert "Expected --public" in str(refused.exception)
    found = said(*words, "--public")
    assert found.exit_code == 0, found.output
    assert "name: 60 different words" in found.output
    assert "public_num_examples = 20\n" in found.output  # and this: 60 records of 3 hospitals
    assert '\nhospital = { categories = ["' in found.output  # a finite epsilon needs them
    path = folder(tmp_path, data="\n" + found.output)
    people().to_csv(tmp_path / "people.csv", index=False)
    here = world.build(read(path), 3)
    assert here.problem.clients == 3
    assert here.problem.shape == (5,)
