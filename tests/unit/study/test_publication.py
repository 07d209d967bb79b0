"""What is not for publication stands apart: in files, in pages, in objects and on the terminal."""

from __future__ import annotations

import json
import stat
from fnmatch import fnmatch
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from support.command_line import said as command
from support.party_folders import enrolled
from support.round_records import round_record
from support.tiny_study import FEDAVG, FEDPROF, study, text, world

import securefl
from securefl.api.callbacks.curves import curves
from securefl.report.run_page import TESTED
from securefl.storage.private_folder import FIELD, NOTICE, PRIVATE, json_text, private_folder, private_page
from securefl.study import results, run_report
from securefl.study.arm import ArmRun
from securefl.study.publication import (
    ACCURACIES,
    MEASURED,
    ON_TERMINAL,
    notice,
    public,
)
from securefl.study.round_events import Round
from securefl.study.seeded import Digests

PUBLIC = {
    ".lock": "whose process runs here; empty afterwards",
    "study.toml": "the plan",
    "home.txt": "where the study's file is",
    "device.txt": "which GPU it ran on",
    "metrics.csv": "what was sent, epsilon, and the global model on the server's own test records",
    "metrics.parquet": "the same",
    "measures.csv": "the global model and a constant answer on the server's own test records",
    "measures.parquet": "the same",
    "confusion.csv": "the global model on the server's own test records",
    "confusion.parquet": "the same",
    "reliability.csv": "the global model on the server's own test records",
    "reliability.parquet": "the same",
    "summary.json": "the same, by arm",
    "versions.json": "software",
    "format.txt": "software",
    "seeds.json": "the plan",
    "plots/accuracy.png": "the global model on the server's own test records",
    "plots/curves.png": "the plan",
    "accounting.json": "what the epsilons cover, from public settings and the holder's own doings",
    "report.html": "the page of what these files have",
}
"""Every file of a run folder that may be published, and why."""
APART_FROM_IT = {
    "README.txt": "text",
    "report.html": "page",
    "metrics.csv": "table",
    "participation.csv": "table",
    "figures.csv": "table",
    "abstentions.csv": "table",
    "attendance.csv": "table",
    "measures.csv": "table",
    "confusion.csv": "table",
    "reliability.csv": "table",
    "measures.json": "json",
    "summary.json": "json",
    "records.json": "json",
    "cell.json": "json",
    "error.txt": "text",
    "split.txt": "text",
    "split.key": "binary",
    "*.parquet": "parquet",
    "plots/*.png": "picture",
    "arms/*/seed-*/ledger.sqlite": "binary",
    "arms/*/seed-*/ledger.sqlite-head": "binary",
}
"""Every file of the private folder, by kind. A new file is on one of both lists, or a test fails."""
LG = '[[arm]]\nname = "Own # bodies"\nprotocol = "lg_fedavg"\n'
MARK = "a reason that is planted: 3141592653"


def kind_of(name: str) -> str:
    kinds = [kind for pattern, kind in APART_FROM_IT.items() if fnmatch(name, pattern)]
    return kinds[0] if kinds else "unclassified"


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def unclassified(folder: Path) -> set[str]:
    """The files of a run folder that nobody has put on one of the lists."""
    apart = {name for name in files_of(folder) if name.startswith(f"{PRIVATE}/")}
    unknown = {name for name in apart if kind_of(name.removeprefix(f"{PRIVATE}/")) == "unclassified"}
    return unknown | (files_of(folder) - apart - PUBLIC.keys())


@pytest.fixture(scope="module", params=["global", "personal"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which clients drop out, by arms of global models alone, or of personal ones among them."""
    folder = tmp_path_factory.mktemp(request.param)
    arms = (FEDAVG, FEDPROF) if request.param == "global" else (FEDAVG, LG)
    written = text(*arms).replace("fraction = 0.5", "fraction = 1.0")
    (folder / "study.toml").write_text(written + "\n[network]\ndropout = 0.3\n")
    told = command("run", folder / "study.toml", "--out", folder / "run")
    assert told.exit_code == 0, told.output
    return folder / "run"


def test_every_file_is_classified(finished: Path) -> None:
    assert unclassified(finished) == set()
    assert "private/participation.csv" in files_of(finished)


def test_each_file_says_first_that_it_is_not_for_publication(finished: Path) -> None:
    private = finished / PRIVATE
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    seen = set()
    for name in files_of(private):
        path, kind = private / name, kind_of(name)
        seen.add(kind)
        match kind:
            case "table":
                assert path.read_text().splitlines()[0] == f"# {NOTICE}", name
            case "json":
                assert f'"{FIELD}": "{NOTICE}"' in path.read_text().splitlines()[0], name
                assert next(iter(json.loads(path.read_text()))) == FIELD
            case "text":
                assert path.read_text().splitlines()[0] == NOTICE, name
            case "page":
                said = unescape(path.read_text())
                assert said.index(NOTICE.replace("in this file", "on this page")) < said.index(
                    '<p class="answer">'
                ), name
            case "picture":
                with Image.open(path) as picture:
                    assert picture.info["Comment"] == NOTICE, name
            case "parquet":
                assert pd.read_parquet(path).attrs == {"notice": NOTICE}, name
            case "binary":
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, name
    assert {"table", "json", "text", "picture", "binary"} <= seen


def test_tables_are_read_without_their_comment(finished: Path) -> None:
    """An arm's name has a "#" in it: the line goes on behind it."""
    for name in ("metrics", "participation"):
        path = finished / PRIVATE / f"{name}.csv"
        whole, read = pd.read_csv(path, skiprows=1), pd.read_csv(path, comment="#")
        pd.testing.assert_frame_equal(whole, read)
        assert len(read)


def test_public_tables_have_no_column_of_an_observer(finished: Path) -> None:
    table = pd.read_csv(finished / "metrics.csv")
    assert not set(MEASURED) & set(table.columns)
    whole = pd.read_csv(finished / PRIVATE / "metrics.csv", comment="#")
    assert set(MEASURED) <= set(whole.columns)
    personal = whole["models"] == "personal"
    assert table.loc[personal, ["accuracy", "loss"]].isna().all(axis=None)
    assert (finished / PRIVATE / "plots" / "accuracy.png").exists() == personal.any()
    assert whole["accuracy"].notna().all()
    assert table.loc[~personal, "accuracy"].tolist() == whole.loc[~personal, "accuracy"].tolist()
    if (finished / "metrics.parquet").exists():
        assert list(pd.read_parquet(finished / "metrics.parquet").columns) == list(table.columns)


def test_the_public_summary_has_no_figure_of_an_observer(finished: Path) -> None:
    said = json.loads((finished / "summary.json").read_text())
    private = json.loads((finished / PRIVATE / "summary.json").read_text())
    assert said["tested"] == TESTED
    for own, apart in zip(said["arms"], private["arms"], strict=True):
        assert own.keys().isdisjoint({"seconds_model", "watt_hours", "wall_seconds", "retired"})
        assert {"seconds_model", "watt_hours", "wall_seconds", "retired"} < apart.keys()
        assert (own["final_accuracy"] is None) == (own["models"] == "personal")
        assert ("final_accuracy" in apart) == (own["models"] == "personal")
    assert "Own # bodies" not in said["answer"]
    assert private["abstentions"], "the network lost some"
    assert "abstentions" not in said


def _planted(folder: Path) -> Path:
    """The public page and the files of an arm with a reason, a warning, and figures that are easy to find."""
    of = study(FEDAVG, rounds=5)
    rows = [_record(number) for number in (1, 2)]
    found = results.collect(of, [ArmRun(of.arms[0], world(of), rows)])
    return run_report.write(
        of, found, [], folder, "securefl run x", marks=Digests(private={"data": "SHA-256 0123abcd4567"})
    )


def _record(number: int) -> dict[str, Any]:
    return round_record(
        number,
        accuracy=0.5,
        bytes_up=1000,
        bytes_down=3000,
        seconds=271828.0,
        watt_hours=161803.0,
        wall_seconds=141421.0,
        retired=[0, 2] if number == 2 else [],
        epsilon={"server": 1.0, "key-holder": 0.0, "others": 1.0},
        selected=[0, 1, 2],
        answered=[2] if number == 1 else [],
        figures={"divergence": [[0, 2], [57721.5, 66260.7]]},
        abstained={"client-0001": MARK},
    )


PLANTED = (MARK, "0123abcd4567", "271828", "543656", "161803", "323606", "141421", "282842", "57721", "66260")


def test_planted_figures_are_in_the_private_folder_alone(tmp_path: Path) -> None:
    page = _planted(tmp_path)
    plain = {name for name in files_of(tmp_path) if not name.startswith(f"{PRIVATE}/")}
    assert page.name in plain
    for name in plain:
        content = (tmp_path / name).read_bytes()
        assert not [mark for mark in PLANTED if mark.encode() in content], name
    apart = b"".join((tmp_path / PRIVATE / name).read_bytes() for name in files_of(tmp_path / PRIVATE))
    assert all(mark.encode() in apart for mark in PLANTED)


def test_a_page_has_all_figures_and_the_other_one_those_to_publish(tmp_path: Path) -> None:
    page = _planted(tmp_path)
    shown, whole = (unescape(path.read_text()) for path in (page, private_page(page)))
    assert "0123abcd4567" not in whole
    private = [
        "FedAvg: nobody answered",
        MARK,
        "retired by themselves",
        "282\u202f842.0",  # it ran here
        "<h3>Participation by data quality</h3>",
        "<h3>Bytes and time</h3>",
        "<h3>Divergence of the clients",
    ]
    assert [figure for figure in private if figure not in whole] == []
    assert [figure for figure in private if figure in shown] == []
    for page_text in (shown, whole):
        assert "<h3>Accuracy</h3>" in page_text
        assert TESTED in page_text
    assert notice(page.name, private=False) in shown[: shown.index("<figure>")]


def test_objects_keep_them_apart(finished: Path) -> None:
    run = securefl.run(finished / "study.toml", out=finished)
    assert list(run.metrics.columns) == list(pd.read_csv(finished / "metrics.csv").columns)
    assert not set(MEASURED) & set(run.metrics.columns)
    assert run.private.metrics["accuracy"].notna().all()
    assert run.private.participation["answered"].sum() < run.private.participation["selected"].sum()
    assert len(run.private.abstentions)
    for name in ("participation", "figures", "abstentions", "warnings"):
        assert not hasattr(run, name)


def test_a_round_keeps_them_apart() -> None:
    known = Round.of({**_record(1), "ended": False}, rounds=2)
    assert (known.accuracy, known.private.accuracy, known.private.answered) == (0.5, 0.5, (2,))
    assert not {"selected", "answered", "wall_seconds", "seconds", "watt_hours"} & set(vars(known))
    own = Round.of({**_record(1), "ended": False, "personal": True}, rounds=2)
    assert (own.accuracy, own.loss, own.private.accuracy) == (None, None, 0.5)
    assert not {"answered", "wall_seconds", "accuracy"} & set(curves(own)), "such tools show them to others"


def test_an_exported_model_has_nothing_of_the_private_folder(finished: Path, tmp_path: Path) -> None:
    whole = pd.read_csv(finished / PRIVATE / "metrics.csv", comment="#")
    for arm, own in whole.groupby("arm"):
        path = tmp_path / f"{arm}.safetensors"
        words = ("export", finished, "--arm", arm, "-o", path)
        told = command(*words)
        assert told.exit_code == 0, told.output
        last = own.iloc[-1]
        names = ["seconds", "watt_hours", "wall_seconds"]
        names += ["accuracy", "loss"] if last["models"] == "personal" else []
        content = path.read_bytes().decode("latin-1") + told.output
        assert not [name for name in names if repr(float(last[name])) in content]
        card = json.loads(command(*words, "--json").stdout)
        assert (card["accuracy"] is None) == (last["models"] == "personal")
        assert "no epsilon covers" in card["measured"]
        assert card.keys().isdisjoint({"answered", "selected", "abstentions", "warnings", "participation"})


def test_the_terminal_says_for_whom_warnings_are(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(text(FEDAVG).replace("learning_rate = 0.2", "learning_rate = 1e30"))
    told = command("run", tmp_path / "s.toml", "--out", tmp_path / "r", "--json")
    assert ON_TERMINAL in told.stderr
    shown = json.loads(told.stdout)
    assert shown["private"][FIELD] == NOTICE
    assert shown["private"]["warnings"]
    assert not {"warnings", "abstentions"} & shown.keys()


def test_json_of_nothing_is_json(tmp_path: Path) -> None:
    assert json.loads(json_text({})) == {FIELD: NOTICE}
    assert json.loads(json_text({"a": [1]})) == {FIELD: NOTICE, "a": [1]}
    private_folder(tmp_path)
    (tmp_path / PRIVATE).chmod(0o755)
    assert stat.S_IMODE(private_folder(tmp_path).stat().st_mode) == 0o755, "its owner's choice stays"


# Parties apart ----------------------------------------------------------------------------------


def test_the_folder_of_a_party_is_its_owners_alone(tmp_path: Path) -> None:
    """None of it is for publication. The run folder of a server's study is as any other's."""
    enrolled(tmp_path)
    for name in ("server", "client-0000"):
        home = tmp_path / name
        assert not stat.S_IMODE(home.stat().st_mode) & 0o067, "a relay's group may pass to the socket at most"
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*") if path.is_file()}
        assert "party.toml" in modes
        assert {name: mode for name, mode in modes.items() if mode != 0o600} == {}
    assert not (tmp_path / "server" / "ledger.sqlite").exists(), "a server has no records"


def test_a_public_table_keeps_accuracies_of_global_models_alone() -> None:
    models, known = ["global", "personal"], dict.fromkeys(ACCURACIES, 0.5)
    shown = public(pd.DataFrame({"models": models, **known}))
    assert shown[list(ACCURACIES)].notna().all(axis=1).tolist() == [True, False]
    assert shown[list(ACCURACIES)].isna().all(axis=1).tolist() == [False, True]
