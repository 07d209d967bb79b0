"""The observer's measures at the end of a run, and the models that no party of it has."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from support.every import every
from support.tiny_study import FEDAVG, FEDPROF, study, text

from securefl.core.errors import DataError
from securefl.storage.private_folder import PRIVATE, private_page
from securefl.study.config import Study, parse
from securefl.study.interruption import Interrupted
from securefl.study.observed import FILE, NAMES, POOLED, stored
from securefl.study.packaged import packaged
from securefl.study.results import Results
from securefl.study.run_report import as_json, told_json
from securefl.study.session import reopen, run_study
from securefl.training.evaluation import constant_accuracy

LG = '[[arm]]\nname = "Own bodies"\nprotocol = "lg_fedavg"\n'
FILES = ("measures.csv", "summary.json", "confusion.csv", "reliability.csv", "metrics.csv")


@pytest.fixture(scope="module", autouse=True)
def brief_observer() -> None:
    """These tests look at the observer's models, which are whole here."""


def run(of: Study, folder: Path, **more: object) -> Results:
    return run_study(of, folder, lambda arm, seed, record: None, **more)[0]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path, Results]:
    of, folder = study(FEDAVG, LG, rounds=3), tmp_path_factory.mktemp("run")
    return of, folder, run(of, folder)


def fedlog() -> Study:
    of = parse(packaged()["fedlog_digits"])
    return replace(of, study=replace(of.study, seeds=(1,)), arms=of.arms[:1])


@every(
    "made",
    [lambda: study(FEDAVG, FEDPROF), lambda: study(LG), fedlog],
)
def test_the_measured_model_is_the_one_that_was_evaluated(made: Callable[[], Study], tmp_path: Path) -> None:
    found = run(made(), tmp_path, baselines=False)
    assert len(found.measures) == len(found.summary) + 1
    for row, arm in zip(found.measures.to_dict("records"), found.summary, strict=False):
        assert (row["name"], row["models"]) == (arm.name, arm.models)
        assert row["accuracy"] == pytest.approx(arm.final_accuracy, abs=1e-12)
        assert 0 < row["auc"] <= 1


def test_rows(finished: tuple[Study, Path, Results]) -> None:
    found = finished[2]
    table = found.measures.set_index("kind")
    assert list(table.index) == ["arm", "arm", "pooled", "alone", "constant"]
    assert (
        table.loc["pooled", "accuracy"] > table.loc["alone", "accuracy"] > table.loc["constant", "accuracy"]
    )
    assert (table["worst_decile"] <= table["at_clients"]).all()
    assert found.confusion.groupby("name")["records"].sum().nunique() == 1
    tests = len(found.reliability) and found.reliability.groupby("name")["records"].sum()
    assert set(tests) == set(found.confusion.groupby("name")["records"].sum())


def test_the_floor_is_that_of_the_records_that_test_an_arm(finished: tuple[Study, Path, Results]) -> None:
    from securefl.study.world import build

    of, _, found = finished
    world = build(of, 3)
    whole, personal = found.summary
    assert whole.floor == constant_accuracy(world.problem.server_y, "classification")
    assert personal.floor > whole.floor, "one client's most frequent class is more frequent at it"
    assert found.metrics.groupby("arm")["floor"].first()[whole.name] == whole.floor


def test_the_observers_models_are_in_no_public_file(finished: tuple[Study, Path, Results]) -> None:
    _, folder, found = finished
    for name in FILES:
        content = (folder / name).read_text()
        for words in (
            NAMES[POOLED],
            "each client alone",
            "worst_decile",
            "at_clients",
            '"pooled"',
            '"alone"',
        ):
            assert words not in content, (name, words)
    public = json.dumps(as_json(found))
    assert "all records in one place" not in public
    assert "the observer's" not in public
    private = told_json(found)["private"]
    assert {row["kind"] for row in private["measures"]} == {"arm", "pooled", "alone", "constant"}
    assert "No party of the run has them" in private["observer"]
    assert "all records in one place" in (folder / PRIVATE / "report.html").read_text()


def test_they_are_computed_once(finished: tuple[Study, Path, Results]) -> None:
    of, folder, found = finished
    passes: list[str] = []
    again = run(of, folder, watch=lambda name, done, total: passes.append(name))
    assert passes == []
    assert again.measures.equals(found.measures)
    assert reopen(folder)[0].measures.equals(found.measures)


def test_the_same_study_gives_the_same_models(tmp_path: Path) -> None:
    of = study(FEDAVG, rounds=1, extra="[measures]\npasses = 2\n")
    first, second = run(of, tmp_path / "a"), run(of, tmp_path / "b")
    assert first.measures.equals(second.measures)


def test_a_section_says_what_is_trained(tmp_path: Path) -> None:
    extra = "[measures]\npooled = true\nalone = false\npasses = 3\n"
    seen: list[tuple[str, int, int]] = []
    watch = lambda *told: seen.append(told)  # noqa: E731
    found = run(study(FEDAVG, rounds=1, extra=extra), tmp_path, baselines=False, watch=watch)
    assert list(found.measures["kind"]) == ["arm", "pooled", "constant"]
    assert seen == [(NAMES[POOLED], number, 3) for number in (1, 2, 3)]


def test_no_noise_reaches_them(tmp_path: Path) -> None:
    """Under private training whose noise leaves nothing of an update, the pooled model has learnt."""
    extra = (
        "[dpsgd]\nclip_norm = 1.0\nnoise_multiplier = 200.0\nsampling_rate = 0.1\nexpected_batch = 20\n"
        'steps = 5\noptimizer = "sgd"\nlearning_rate = 0.2\n'
    )
    noised = text(FEDAVG, rounds=1, clients=6, non_private="[]", extra=extra)
    noised = noised.replace('"replace-one"', '"add-remove"').replace("budget = inf", "budget = 8")
    found = run(parse(noised.replace("batch_size = 48", "batch_size = 16")), tmp_path)
    pooled = found.measures.set_index("kind").loc["pooled", "accuracy"]
    assert found.summary[0].final_accuracy < 0.4 < 0.7 < pooled


class Once:
    """A `Stop` that asks to stop after the first pass of a training."""

    def finishing(self, what: str) -> nullcontext[None]:
        self.what = what
        return nullcontext()

    def check(self) -> None:
        if self.what == "this pass":
            raise Interrupted(15)


def test_a_stop_ends_a_training_and_the_next_run_goes_on(tmp_path: Path) -> None:
    of = study(FEDAVG, rounds=1)
    with pytest.raises(Interrupted):
        run(of, tmp_path, stop=Once())
    assert not (tmp_path / FILE).exists()
    assert len(run(of, tmp_path).measures) == 4


def test_a_folder_of_an_earlier_version_opens_without_them(tmp_path: Path) -> None:
    of = study(FEDAVG, rounds=1)
    run(of, tmp_path, baselines=False)
    (tmp_path / FILE).unlink()
    found, page = reopen(tmp_path)
    assert found.measures.empty
    assert "Measures after the last round" not in private_page(page).read_text()
    assert told_json(found)["private"]["observer"] == ""


@every(
    ("content", "words"),
    [("{", "is damaged"), ('{"study": "", "measures": []}', "another one"), ("[]", "is damaged")],
)
def test_a_damaged_file_is_refused_with_what_to_do(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / FILE).write_text(content)
    with pytest.raises(DataError, match=words) as caught:
        stored(study(FEDAVG), tmp_path)
    assert "Remove it, and run the study again" in str(caught.value)
