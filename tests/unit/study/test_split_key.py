"""Splits of a study: by a key of the holder that lasts, and so that a record moves itself alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.command_line import securefl as command
from support.every import every
from support.own_study import people, written
from support.private_studies import DPSGD
from support.tiny_study import FEDAVG, study, text

import securefl
from securefl.commands.exit_codes import ExitCode
from securefl.core.errors import ConfigError, DataError
from securefl.core.keys import SecretKey
from securefl.data.sides import Sides
from securefl.storage.private_folder import PRIVATE
from securefl.study import split_key, world
from securefl.study.config import Brought, Study, parse
from securefl.study.split_key import NAME, Keeper
from securefl.sweep.cells import parse_sweep
from securefl.sweep.run import share_key

pytestmark = pytest.mark.filterwarnings("ignore:An arm of Run:RuntimeWarning")

OWN = """
[data]
target = "ill"
classes = ["no", "yes"]
ignore = ["name"]
client_column = "hospital"
public_num_examples = 100
partition = { kind = "natural" }
[data.columns]
age = { range = [0, 120], missing = 40, indicator = true }
sex = { categories = ["f", "m"] }
hospital = { categories = ["north", "south", "west", "east"] }
"""
UNDECLARED = OWN.replace('hospital = { categories = ["north", "south", "west", "east"] }\n', "")
MLP = '[model]\nkind = "mlp"\nhidden = [4]\n'
KEY = SecretKey(bytes(range(32)))


def own(frame: pd.DataFrame, *, data: str = OWN, extra: str = DPSGD) -> Study:
    return parse(written(data=data, model=MLP, extra=extra, rounds=1), brought=Brought(data=frame))


def sides(of: Study, key: SecretKey | None = KEY) -> dict[str, Counter[bytes]]:
    """Which records are on which side: of each client's training, of hold-outs, and of the test part."""
    here = world.build(of, 3, splits=Keeper(key=key).splits(of, 3))
    found = {f"client {k}": _rows(x, y) for k, (x, y) in enumerate(here.records)}
    for k, (x, y) in enumerate(here.held or ()):
        found[f"held {k}"] = _rows(x, y)
    found["test"] = _rows(here.problem.server_x, here.problem.server_y)
    return found


def _rows(x: object, y: object) -> Counter[bytes]:
    xs, ys = np.asarray(x), np.asarray(y)
    return Counter(row.tobytes() + label.tobytes() for row, label in zip(xs, ys, strict=True))


def moved(one: dict[str, Counter[bytes]], other: dict[str, Counter[bytes]]) -> int:
    """How many records two worlds differ by, over all of their sides."""
    assert one.keys() == other.keys()
    return sum(((one[key] - other[key]) + (other[key] - one[key])).total() for key in one)


@every("data", [OWN, OWN.replace("public_num_examples", "holdout = 0.3\npublic_num_examples")])
def test_a_record_that_goes_moves_no_other(data: str) -> None:
    # The attack: by place, one record fewer exchanged 1,453 of 4,000 between training and test.
    frame = people(400)
    whole = sides(own(frame, data=data))
    for gone in (0, 111, 399):
        less = sides(own(frame.drop(index=gone), data=data))
        assert moved(whole, less) == 1


def test_a_record_that_is_replaced_moves_no_other() -> None:
    frame = people(400)
    other = frame.copy()
    other.loc[17, ["age", "sex", "dose"]] = [3, "m", 77.0]
    # it goes from wherever it was, and comes to wherever it is
    assert moved(sides(own(frame)), sides(own(other))) == 2


def test_a_client_without_records_is_a_client() -> None:
    frame = people(200)
    without = frame[frame["hospital"] != "west"]
    last = frame[frame["hospital"] == "west"].iloc[[0]]
    one = pd.concat([without, last])
    here, other = sides(own(without)), sides(own(one))
    assert here.keys() == other.keys()
    assert moved(here, other) == 1


def test_the_key_decides_and_no_seed() -> None:
    of = own(people(200))
    assert sides(of) == sides(of)
    assert moved(sides(of), sides(of, SecretKey(bytes(32)))) > 20


def test_counts_and_clients_are_declared_where_they_are_data() -> None:
    with pytest.raises(ConfigError, match="`public_num_examples`"):
        world.build(own(people(200), data=OWN.replace("public_num_examples = 100\n", "")), 3)
    with pytest.raises(ConfigError, match="hospital"):
        world.build(own(people(200), data=UNDECLARED), 3)
    # Without a claim both follow from the records, as they always did.
    here = world.build(
        own(people(200), data=UNDECLARED.replace("public_num_examples = 100\n", ""), extra=""), 3
    )
    assert here.problem.clients == 3


def test_public_numbers_do_not_follow_from_the_records() -> None:
    few, many = (world.build(own(people(n)), 3).problem for n in (100, 300))
    assert (few.records, few.clients) == (many.records, many.clients) == (400, 4)


# The key --------------------------------------------------------------------------------------------


def played(of: Study, out: Path) -> Path:
    return securefl.run(of, out=out, workers=1, progress=False).folder


def test_a_run_draws_a_key_and_keeps_it(tmp_path: Path) -> None:
    of = own(people(200))
    folders = [played(of, tmp_path / name) for name in "ab"]
    keys = [split_key.read(folder / PRIVATE) for folder in folders]
    assert keys[0] != keys[1]
    assert (folders[0] / PRIVATE / NAME).stat().st_mode & 0o777 == 0o600
    assert not (folders[0] / NAME).exists()
    again = securefl.run(of, out=folders[0], workers=1, progress=False)
    assert split_key.read(again.folder / PRIVATE) == keys[0]
    raw = keys[0].reveal()
    for path in folders[0].rglob("*"):
        if path.is_file() and path.name != NAME:
            assert raw not in path.read_bytes()
            assert raw.hex().encode() not in path.read_bytes()


def test_a_run_without_its_key_does_not_go_on(tmp_path: Path) -> None:
    of = own(people(200))
    folder = played(of, tmp_path / "a")
    path = folder / PRIVATE / NAME
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(DataError, match="Put the file back"):
        played(of, folder)
    path.write_bytes(kept)
    path.chmod(0o644)
    with pytest.raises(DataError, match="chmod 600"):
        played(of, folder)
    path.chmod(0o600)
    path.write_bytes(kept + b"x")
    with pytest.raises(DataError, match="Expected 32 bytes"):
        played(of, folder)
    path.write_bytes(kept)
    played(of, folder)


def test_without_a_claim_there_is_no_key(tmp_path: Path) -> None:
    of = own(people(200), data=UNDECLARED, extra="")
    folder = played(of, tmp_path / "a")
    assert not (folder / PRIVATE / NAME).exists()
    assert sides(of, None) == sides(of, None)


def test_a_packaged_data_set_has_no_secret_test_part() -> None:
    of = study(FEDAVG, extra=DPSGD)
    one, other = (Keeper(key=key).splits(of, 3) for key in (KEY, SecretKey(bytes(32))))
    x, y = np.arange(300, dtype=np.float32).reshape(100, 3), np.arange(100) % 2
    assert np.array_equal(one.test.apart(x, y, 0.3, "test"), other.test.apart(x, y, 0.3, "test"))
    assert not np.array_equal(
        one.holdout.apart(x, y, 0.3, "holdout"), other.holdout.apart(x, y, 0.3, "holdout")
    )


@every("extra", ["", DPSGD])
def test_a_run_of_another_version_of_the_split_does_not_go_on(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would train on copies of records that it has tested on."""
    public = UNDECLARED.replace("public_num_examples = 100\n", "")
    of = own(people(60), extra=extra, data=OWN if extra else public)
    folder = played(of, tmp_path / "run")
    monkeypatch.setattr(split_key, "_VERSION", "securefl split v1")
    with pytest.raises(DataError, match="another version"):
        securefl.run(of, out=folder, workers=1, progress=False)


def test_whoever_looks_keeps_no_key(tmp_path: Path) -> None:
    of = own(people(200))
    assert Keeper().splits(of, 3).bound == ""
    one, other = (Keeper().splits(of, 3).test for _ in range(2))
    assert isinstance(one, Sides)
    x, y = np.arange(300, dtype=np.float32).reshape(100, 3), np.arange(100) % 2
    assert not np.array_equal(one.apart(x, y, 0.3, "test"), other.apart(x, y, 0.3, "test"))


def test_cells_of_a_sweep_have_one_key(tmp_path: Path) -> None:
    of = own(people(60))
    first, second = tmp_path / "cells" / "a", tmp_path / "cells" / "b"
    split_key.share(tmp_path, of, first, begun=False)
    split_key.share(tmp_path, of, second, begun=True)
    keys = [split_key.read(folder / PRIVATE) for folder in (tmp_path, first, second)]
    assert keys[0] == keys[1] == keys[2]
    (tmp_path / PRIVATE / NAME).unlink()
    with pytest.raises(DataError, match="Put the file back"):
        split_key.share(tmp_path, of, tmp_path / "cells" / "c", begun=True)


def test_a_cell_that_claims_no_epsilon_may_be_a_sweeps_first(tmp_path: Path) -> None:
    """The next one found no key, and the sweep ended there. Its remedy was a new sweep, which ended alike."""
    bare, noised = own(people(60), extra=""), own(people(60))
    first, second = tmp_path / "cells" / "a", tmp_path / "cells" / "b"
    split_key.share(tmp_path, bare, first, begun=False)
    split_key.share(tmp_path, noised, second, begun=True)
    keys = [split_key.read(folder / PRIVATE) for folder in (first, second, tmp_path)]
    assert keys[0] == keys[1] == keys[2]


def test_the_cell_without_noise_is_tested_on_the_records_of_the_others(tmp_path: Path) -> None:
    trained = own(
        people(200),
        data=OWN.replace(', "east"', ""),  # nobody is there
        extra=DPSGD.replace("noise_multiplier = 1.2", "epsilon = 2.0"),
    )
    grid = '\n[sweep.grid]\n"dpsgd.epsilon" = [2.0, inf]\n'
    swept = parse_sweep(trained.text + grid, brought=trained.brought)
    for of, same in ((swept, True), (replace(swept, cells=swept.cells[1:]), False)):
        out, tested = tmp_path / str(same), []
        for cell in of.cells:
            folder = of.home(out, cell)
            share_key(of, out, cell.study, folder)
            keeper = split_key.of_run(cell.study, folder, began=False)
            tested += [
                world.build(cell.study, seed, splits=keeper.splits(cell.study, seed)) for seed in (3, 4)
            ]
        assert len({here.problem.server_x.tobytes() for here in tested}) == (1 if same else 2)
        assert (out / PRIVATE / NAME).exists() == same, "without a claim the splits follow from the seed"


def test_a_sweep_shares_its_key(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sweep = text(FEDAVG, rounds=1, extra=DPSGD).replace('"digits"', '"digits"\nholdout = 0.3')
    path = tmp_path / "study.toml"
    path.write_text(sweep + '\n[sweep.grid]\n"local.learning_rate" = [0.1, 0.2]\n', encoding="utf-8")
    code, _, err = command(capfd, "sweep", path, "--out", tmp_path / "out", "--workers", "1")
    assert code in (ExitCode.DONE, ExitCode.UNLEARNT), err  # one round may teach it nothing
    keys = {kept.read_bytes() for kept in (tmp_path / "out").rglob(NAME)}
    assert len(keys) == 1
    assert len(list((tmp_path / "out").rglob(NAME))) == 3


def test_a_key_is_not_replaced(tmp_path: Path) -> None:
    split_key.write_new(tmp_path, KEY)
    split_key.write_new(tmp_path, KEY)
    with pytest.raises(ConfigError):
        split_key.write_new(tmp_path, SecretKey(bytes(32)))
    assert split_key.read(tmp_path) == KEY


@every("mode", [0o640, 0o602, 0o604, 0o620])
def test_a_key_that_others_may_have_read_is_refused(mode: int, tmp_path: Path) -> None:
    split_key.write_new(tmp_path, KEY)
    (tmp_path / NAME).chmod(mode)
    with pytest.raises(DataError):
        split_key.read(tmp_path)


def test_real_shares_are_for_the_owner_alone(tmp_path: Path) -> None:
    """On the terminal of `plan` and in the private folder, by class: nothing that is public has them."""
    of = own(people(60), data=OWN.replace("public_num_examples", "holdout = 0.3\npublic_num_examples"))
    folder = played(of, tmp_path / "run")
    here = world.build(of, 3, splits=Keeper(key=split_key.read(folder / PRIVATE)).splits(of, 3))
    words = here.marks.private["parts"]
    assert any(words in note for note in here.marks.notes)
    counts = [
        len(here.problem.server_y),
        *(sum(len(y) for _, y in own) for own in (here.held or (), here.records)),
    ]
    assert sum(counts) == 60
    for name, count in zip(("test part", "held out", "trained on"), counts, strict=True):
        assert f"{name} {count} (" in words
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path.parent.name for path in files if words.encode() in path.read_bytes()] == [PRIVATE]
