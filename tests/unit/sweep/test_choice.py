"""A sweep that pays for its choice, one that does not and says so, and one on a shared ledger."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.command_line import securefl as command
from support.every import every
from support.tiny_study import text, with_privacy

from securefl.accounting.figures import in_words
from securefl.accounting.shared import runs_of
from securefl.core.errors import ConfigError, DataError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.storage.private_folder import private_folder
from securefl.study.accounted import ALONE, NOTE, choice_of
from securefl.study.export import taken
from securefl.study.finished import finished_run
from securefl.study.folder import study_of
from securefl.study.privacy_statement import statements
from securefl.study.session import run_study
from securefl.sweep.best import CHOICE, caveats
from securefl.sweep.cells import Sweep, claim, parse_sweep
from securefl.sweep.choice import Chosen, choose, cost, require_choosable
from securefl.sweep.gathered import gather

pytestmark = pytest.mark.usefixtures("blank_plots")

FEDLOG = '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\n'
NOISED = {"noise": '"local"', "adversaries": '["server", "others"]', "budget": "3.0", "epsilon": "1.0"}
CLIENT = {"unit": '"client"', "adjacency": '"zero-out"'}
GRID = '[sweep.grid]\n"local.learning_rate" = [0.05, 0.2]\n'
CHOSEN = '[sweep]\nchoice = { trials = "poisson", mean = 3 }\n' + GRID


def written(sweep: str = CHOSEN, seeds: str = "[3]", **privacy: str) -> str:
    study = text(FEDLOG, non_private="[]", seeds=seeds, rounds=1)
    return with_privacy(study, {**NOISED, **privacy}) + "\n" + sweep


def claimed(out: Path) -> Sweep:
    out.mkdir()
    sweep = parse_sweep(written())
    claim(out, sweep)
    return sweep


def test_no_choice_is_made_by_accuracies_of_personal_models(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    out.mkdir()
    personal = '[[arm]]\nname = "FedPer"\nprotocol = "fedper"\n'
    sweep = parse_sweep(text(personal, rounds=1) + "\n" + CHOSEN)
    claim(out, sweep)
    with pytest.raises(ConfigError, match="personal"):
        choose(sweep, out, source=Source(SecretKey(bytes(range(32)))))
    assert not (out / "chosen").exists()


def test_the_best_of_the_drawn_trials_is_published_with_the_cost_of_the_choice(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    sweep = claimed(out)
    found = choose(sweep, out, source=Source(SecretKey(bytes(range(32)))))
    drawn = json.loads((out / "private" / "trials.json").read_text())
    trials = sorted((out / "private" / "trials").glob("0*"))
    assert len(trials) == len(drawn) > 1
    scores = [json.loads((own / "summary.json").read_text())["arms"][0]["final_accuracy"] for own in trials]
    assert found.score == max(scores)
    assert found.cell is sweep.cells[drawn[scores.index(max(scores))]]
    assert not (out / "trials").exists()
    assert (out / "private").stat().st_mode & 0o777 == 0o700
    # One trial is told 1.0, the choice more, in every place that is for publication.
    assert found.epsilon == cost(sweep)
    assert 1.5 < found.epsilon["server"] < 6
    said = f"cost epsilon {found.epsilon['server']:.3g} against the server"
    page = (out / "chosen" / "report.html").read_text()
    summary = json.loads((out / "chosen" / "summary.json").read_text())
    card = taken(found.cell.study, out / "chosen", "FedLog").card
    for told in (page, summary["accounting"], card["privacy"]["accounting"], " ".join(found.sentences)):
        assert said in told
        assert ALONE not in told
    # Neither the trial's place nor the number of trials shows in a time, be it of a file or of a folder.
    published = [out / "chosen", *(out / "chosen").rglob("*")]
    assert len(published) > 20
    assert {path.stat().st_mtime_ns for path in published} == {(out / "sweep.toml").stat().st_mtime_ns}
    # Every reader of the chosen run's epsilon has the number, and none that of one trial.
    spent, chosen = found.epsilon["server"], out / "chosen"
    assert summary["arms"][0]["epsilon"]["server"] == pytest.approx(spent)
    assert card["privacy"]["epsilon"]["server"] == pytest.approx(spent)
    assert statements(chosen)["FedLog"]["Epsilon"][0] == f"ε = {in_words(spent)} against the server."
    assert "Curve" not in statements(chosen)["FedLog"]
    (row,) = gather([chosen]).series
    assert row.rows["epsilon_true"].tolist() == pytest.approx([spent])
    assert finished_run(chosen, "chosen").metrics["epsilon_server"].tolist() == pytest.approx([spent])
    # More rounds of it, or of a trial, would cost what the choice does not cover.
    shutil.copytree(chosen, tmp_path / "taken-away")
    for folder in (chosen, trials[0], tmp_path / "taken-away"):
        with pytest.raises(ConfigError, match=r"which a sweep made.*rounds = 2 in another folder"):
            run_study(study_of(folder), folder, lambda arm, seed, record: None, rounds=2)
    # The same call again draws nothing anew.
    again = choose(sweep, out, source=Source(SecretKey(bytes(32))))
    assert (again.score, again.cell) == (found.score, found.cell)
    assert json.loads((out / "private" / "trials.json").read_text()) == drawn


def test_no_trial_at_all_is_an_outcome_too(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    sweep = claimed(out)
    (private_folder(out) / "trials.json").write_text("[]")
    found = choose(sweep, out)
    assert found.cell is None
    assert "Nothing is chosen" in found.sentences[0]
    assert not (out / "chosen").exists()
    (private_folder(out) / "trials.json").write_text("[7]")
    with pytest.raises(DataError, match="a trial has no cell"):
        choose(sweep, out)


def test_the_commands_choose_and_plan_the_choice(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(written())
    code, out, _ = command(capfd, "plan", file)
    assert code == 0
    assert "by a random number of trials (Poisson, mean 3) is accounted for" in out
    assert CHOICE not in out
    code, out, _ = command(capfd, "sweep", file, "--out", tmp_path / "out", "--json")
    assert code in (0, 4)
    assert json.loads(out)["epsilon"]["server"] == pytest.approx(cost(parse_sweep(written()))["server"])


def test_a_sweep_without_a_choice_says_that_it_is_not_covered() -> None:
    assert caveats(parse_sweep(written(GRID))) == [ALONE, CHOICE]
    assert caveats(parse_sweep(written())) == [ALONE]


@every(
    ("sweep", "seeds", "privacy", "said"),
    [
        (CHOSEN, "[3, 4]", {}, "one arm and one seed"),
        (CHOSEN, "[3]", {"ledger": '"/tmp/people.ledger"'}, "no `ledger` with `choice`"),
        (CHOSEN + '"privacy.delta" = [1e-4, 1e-5]\n', "[3]", {}, "one unit, adjacency, delta"),
        (CHOSEN + '"data.clients" = [4, 6]\n', "[3]", CLIENT, r"one section \[data\] and one seed"),
        (CHOSEN + '"study.seeds" = [[3], [4]]\n', "[3]", CLIENT, r"one section \[data\] and one seed"),
        (GRID, "[3]", {}, "Expected `choice`"),
        (CHOSEN.replace("mean = 3", "mean = 0.5"), "[3]", {}, "mean in"),
        (CHOSEN.replace("poisson", "fixed"), "[3]", {}, "trials"),
    ],
)
def test_what_no_bound_is_known_for_is_refused(
    sweep: str, seeds: str, privacy: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        require_choosable(parse_sweep(written(sweep, seeds, **privacy)))


def test_clients_that_are_the_same_in_all_cells_are_chosen_among() -> None:
    """The remedies: nothing in the grid that deals, or another unit."""
    require_choosable(parse_sweep(written(**CLIENT)))
    require_choosable(parse_sweep(written(CHOSEN + '"data.clients" = [4, 6]\n')))


def test_a_damaged_cost_of_a_choice_is_no_cost(tmp_path: Path) -> None:
    (tmp_path / NOTE).write_text('{"sentence": "", "epsilon": {"server": 1.0}}')
    with pytest.raises(DataError, match="expected the epsilon of a choice"):
        choice_of(tmp_path)


def test_all_cells_of_a_sweep_spend_one_ledger_or_none_begins(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "people.ledger"
    file = tmp_path / "sweep.toml"
    file.write_text(written(GRID, ledger=f'"{ledger}"', epsilon="1.0", budget="1.2"))
    code, _, err = command(capfd, "sweep", file, "--out", tmp_path / "a", "--workers", "1")
    assert code != 0
    assert "got 2 runs that would raise epsilon" in err
    assert not ledger.exists()
    file.write_text(written(GRID, ledger=f'"{ledger}"', epsilon="1.0", budget="1.6"))
    _, out, _ = command(capfd, "plan", file)
    assert "holds 0 runs over these records" in out
    assert command(capfd, "sweep", file, "--out", tmp_path / "b", "--workers", "2")[0] in (0, 4)
    assert len(runs_of(ledger).entries) == 2
    assert 1.3 < runs_of(ledger).epsilon("server") <= 1.6
    # It goes on, and is charged nothing twice; another sweep is refused before its first cell.
    assert command(capfd, "sweep", file, "--out", tmp_path / "b", "--workers", "1")[0] in (0, 4)
    code, _, err = command(capfd, "sweep", file, "--out", tmp_path / "c", "--workers", "1")
    assert "beside 2 runs over the same records" in err
    assert len(runs_of(ledger).entries) == 2
    page = (tmp_path / "b" / "sweep.html").read_text()
    assert "epsilon does not cover its choice" in page
    assert "Accounted in the ledger" in page


Chooses = Callable[[Iterable[float]], tuple[Chosen, list[int]]]


@pytest.fixture
def scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chooses:
    """Choose among trials that end with these scores. Returns the choice, and the trials published for it."""
    own = claimed(tmp_path / "sweep")

    def choosing(scores: Iterable[float]) -> tuple[Chosen, list[int]]:
        left, published = iter(scores), list[int]()

        def ran(*_: Any, **__: Any) -> tuple[Any, Path]:
            return SimpleNamespace(
                summary=[SimpleNamespace(models="global", final_accuracy=next(left))]
            ), tmp_path

        def publish(sweep: Sweep, out: Path, number: int, told: Any) -> Path:
            published.append(number)
            return out

        monkeypatch.setattr("securefl.sweep.choice.run_study", ran)
        monkeypatch.setattr("securefl.sweep.choice._published", publish)
        return choose(own, tmp_path / "sweep"), published

    return choosing


@pytest.mark.parametrize(
    ("cells", "scores", "best"),
    [
        ([0, 1, 0, 1, 1], [math.nan, 0.5, 0.9, 0.9, 0.2], 2),
        ([0, 1], [0.5, math.nan], 0),
        ([0, 1], [math.nan, math.nan], None),
    ],
)
def test_the_best_score_wins_wherever_it_stands_and_none_that_diverged(
    cells: list[int], scores: list[float], best: int | None, scored: Chooses, tmp_path: Path
) -> None:
    (private_folder(tmp_path / "sweep") / "trials.json").write_text(json.dumps(cells))
    found, published = scored(scores)
    assert published == ([] if best is None else [best])
    assert (found.cell is None) == (best is None)
    if best is not None:
        assert (found.score, found.cell) == (scores[best], parse_sweep(written()).cells[cells[best]])


def test_trials_are_drawn_once_and_for_their_owner_alone(scored: Chooses, tmp_path: Path) -> None:
    """A number of trials that others know, or that is drawn anew, is a choice that epsilon misses."""
    drawn, found = private_folder(tmp_path / "sweep") / "trials.json", set()
    for _ in range(8):
        scored(repeat(math.nan))
        found.add(drawn.read_bytes())
    assert len(found) == 1
    assert drawn.stat().st_mode & 0o777 == 0o600
