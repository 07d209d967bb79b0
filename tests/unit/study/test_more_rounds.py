"""More rounds for a finished run: it ends as one that was never interrupted, or the reason is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cheap_runs import unreported
from support.every import every
from support.private_studies import DISTRIBUTED, client_level, private
from support.tiny_study import FEDAVG, plain, study, text

import securefl
from securefl.commands.telling import run_and_tell
from securefl.core.errors import ConfigError, DataError
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Study, parse
from securefl.study.export import taken
from securefl.study.folder import ROUNDS_NOTE, study_of
from securefl.study.interruption import Interruption
from securefl.study.session import reopen, run_study
from securefl.sweep.cells import claim, parse_sweep
from securefl.sweep.gathered import run_folders
from securefl.sweep.run import FACTS, run_cell


def ran(own: Study, folder: Path, rounds: int | None = None) -> list[dict[str, object]]:
    """Run the study, and return the records of its first arm."""
    with unreported():
        run_study(own, folder, lambda arm, seed, record: None, baselines=False, rounds=rounds)
    place = arm_folder(folder, own.arms[0], own.study.seeds[0])
    with Checkpoint(checkpoint_file(place)) as checkpoint:
        return plain(checkpoint.load()[1])


def seldom(more: str = "", *, rounds: int) -> Study:
    """A study whose models are tested in every second round, and in the last one."""
    return parse(text(FEDAVG, rounds=rounds).replace("[data]", f"evaluate_every = 2\n{more}\n[data]"))


def test_a_run_with_more_rounds_is_the_run_that_had_them_from_the_start(tmp_path: Path) -> None:
    once, short = study(FEDAVG, rounds=3), study(FEDAVG, rounds=1)
    expected = ran(once, tmp_path / "once")
    first = ran(short, tmp_path / "more")
    assert first == expected[:1]
    found = ran(short, tmp_path / "more", rounds=3)
    assert found == expected
    assert ran(short, tmp_path / "more") == expected  # without the word it stays, and is finished
    both = {"once": once, "more": study_of(tmp_path / "more")}
    models = [taken(own, tmp_path / name, "FedAvg") for name, own in both.items()]
    one, other = (own.learnt.tensors() for own in models)
    assert {name: values.tobytes() for name, values in one.items()} == {
        name: values.tobytes() for name, values in other.items()
    }
    results, _ = reopen(tmp_path / "more")
    assert results.metrics["round"].max() == 3
    wanted, _ = reopen(tmp_path / "once")
    copied, page = reopen(tmp_path / "more", tmp_path / "page")  # from a private copy of the run
    assert copied.measures.equals(results.measures)
    again = f"securefl run {tmp_path}/more/study.toml --out {tmp_path}/more-again"
    assert f"<pre>{again}\n{again} --rounds 3</pre>" in page.read_text()
    assert results.measures.equals(wanted.measures)  # of the model after round 3


def test_private_training_goes_on_until_its_budget_is_spent(tmp_path: Path) -> None:
    own = private("fedavg", 'fraction = 1.0\naggregation = "partial"', rounds=1, budget="2.0")
    one = ran(own, tmp_path)
    two = ran(own, tmp_path, rounds=2)
    assert two[:1] == one
    assert two[1]["epsilon"] != one[0]["epsilon"]
    with pytest.raises(ConfigError, match=r"for 5000 rounds, got 2, which buys \d+. Ask"):
        ran(own, tmp_path, rounds=5000)
    assert (tmp_path / ROUNDS_NOTE).read_text() == "1\n2\n"


REFUSED: dict[str, tuple[Study, str]] = {
    "noise": (
        client_level(rounds=1),
        "noise for 1, beyond which ledgers refuse. Run the study with rounds = 4 in another folder",
    ),
    "shares": (client_level(rounds=1, sum='"masked"', **DISTRIBUTED), "ledgers refuse"),
    "spent": (
        private("fedavg", 'fraction = 1.0\naggregation = "partial"', rounds=1, budget="1.3"),
        "which buys 1. Set a larger `budget`. Run the study with rounds = 4 in another folder",
    ),
}


@every(("own", "message"), REFUSED.values())
def test_noise_for_other_rounds_and_a_spent_budget_are_refused_with_what_to_do(
    own: Study, message: str, tmp_path: Path
) -> None:
    before = ran(own, tmp_path)
    with pytest.raises(ConfigError, match=message):
        ran(own, tmp_path, rounds=4)
    assert ran(own, tmp_path) == before
    assert not (tmp_path / ROUNDS_NOTE).exists()


UNLIKE: dict[str, tuple[Study, str]] = {
    "a last test": (
        seldom(rounds=3),
        "evaluate_every = 2, which does not divide 3. Run the study with rounds",
    ),
    "an end": (
        study('[[arm]]\nname = "x"\nprotocol = "fedbabu"\n', rounds=2),
        "'tuned' of x, which the clients of the finished run have sent at its end. Run the study with rounds",
    ),
}


@every(("own", "message"), UNLIKE.values())
def test_a_run_whose_last_round_was_unlike_the_others_is_refused_and_another_folder_takes_it(
    own: Study, message: str, tmp_path: Path
) -> None:
    before = ran(own, tmp_path / "run")
    with pytest.raises(ConfigError, match=message):
        ran(own, tmp_path / "run", rounds=4)
    assert ran(own, tmp_path / "run") == before
    longer = parse(own.text.replace(f"rounds = {own.study.rounds}", "rounds = 4"))
    assert len(ran(longer, tmp_path / "other")) == 4


ALIKE: dict[str, Study] = {
    "tests now and then": seldom(rounds=2),
    "patience": seldom("patience = 1\n", rounds=2),
    "no end": study('[[arm]]\nname = "x"\nprotocol = "fedbabu"\nfine_tuned = "never"\n', rounds=2),
}


@every("own", ALIKE.values())
def test_a_run_whose_last_round_is_as_the_others_goes_on_as_if_never_interrupted(
    own: Study, tmp_path: Path
) -> None:
    longer = parse(own.text.replace("rounds = 2", "rounds = 5"))
    ran(own, tmp_path / "run")
    assert ran(own, tmp_path / "run", rounds=5) == ran(longer, tmp_path / "once")


def test_no_finished_run_no_more_rounds_and_a_damaged_note(tmp_path: Path) -> None:
    own = study(FEDAVG, rounds=1)
    with pytest.raises(ConfigError, match="Expected a finished run"):
        ran(own, tmp_path, rounds=2)
    assert not list(tmp_path.iterdir())
    ran(own, tmp_path)
    with pytest.raises(ConfigError, match="Expected more than its 1 rounds"):
        ran(own, tmp_path, rounds=1)
    (tmp_path / ROUNDS_NOTE).write_text("many")
    with pytest.raises(DataError, match="Restore it"):
        ran(own, tmp_path)


NO_ROUNDS = [(10**9, r"rounds in \[1, 10\^6\], got 1000000000"), (1, "evaluate_every from 1 to 1")]


@every(("rounds", "message"), NO_ROUNDS)
def test_a_number_of_rounds_that_no_study_has_is_refused_with_its_range(
    rounds: int, message: str, tmp_path: Path
) -> None:
    own = seldom(rounds=2)
    ran(own, tmp_path)
    with pytest.raises(ConfigError, match=message):
        run_and_tell(own, tmp_path, True, rounds=rounds)
    (tmp_path / ROUNDS_NOTE).write_text(f"{rounds}\n")
    with pytest.raises(ConfigError, match=message):
        ran(own, tmp_path)


def test_patience_that_ended_all_arms_is_named_and_the_remedy_goes_on(tmp_path: Path) -> None:
    still = text(FEDAVG, rounds=6).replace("learning_rate = 0.2", "learning_rate = 1e-12")
    own = parse(still.replace("rounds = 6", "rounds = 6\npatience = 1"))
    assert len(ran(own, tmp_path / "run")) < 6
    remedy = r"Set a larger `patience`, or leave it out\. Run the study with rounds = 8"
    with pytest.raises(ConfigError, match=remedy):
        ran(own, tmp_path / "run", rounds=8)
    assert len(ran(parse(still.replace("rounds = 6", "rounds = 8")), tmp_path / "other")) == 8


def test_a_shared_ledger_has_no_place_for_more(tmp_path: Path) -> None:
    named = {"ledger": f'"{tmp_path / "shared.sqlite"}"', "budget": "4.0"}
    own = private("fedavg", 'fraction = 1.0\naggregation = "partial"', rounds=1, **named)
    ran(own, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"reserved\. Begin a new run of 1 rounds from this one's export"):
        ran(own, tmp_path / "run", rounds=2)
    taken(own, tmp_path / "run", "x").write(tmp_path / "model.safetensors")
    given = f'hidden = [8]\nweights = "{tmp_path / "model.safetensors"}"\ntrained_on = "ledger"'
    assert len(ran(parse(own.text.replace("hidden = [8]", given), home=tmp_path), tmp_path / "on")) == 1


def test_python_has_the_rounds_that_a_run_was_taken_on_to(tmp_path: Path) -> None:
    own = study(FEDAVG, rounds=1)
    ran(own, tmp_path / "run")
    ran(own, tmp_path / "run", rounds=2)
    found = securefl.run(own, out=tmp_path / "run", workers=1, progress=False)
    assert found.study.study.rounds == 2
    assert found.model().card["rounds"] == 2
    assert found.export(tmp_path / "model.safetensors").is_file()


def test_a_cell_of_a_sweep_stands_for_the_rounds_of_its_study(tmp_path: Path) -> None:
    """The attack: a cell of one round that had more won its sweep under the words "rounds = 1"."""
    sweep = parse_sweep(text(FEDAVG, rounds=1) + '\n[sweep.grid]\n"study.rounds" = [1]\n')
    out, (cell,) = tmp_path / "sweep", sweep.cells
    claim(out, sweep)
    home = sweep.home(out, cell)

    def play() -> None:
        run_cell(cell.study, home, lambda done: None, Interruption())

    play()
    with pytest.raises(ConfigError, match=r"which a sweep made.*rounds = 2 in another folder"):
        ran(cell.study, home, rounds=2)
    # It can be taken on elsewhere, and put back.
    home.rename(tmp_path / "apart")
    ran(cell.study, tmp_path / "apart", rounds=2)
    (tmp_path / "apart").rename(home)
    (home / FACTS).unlink()
    with pytest.raises(ConfigError, match=r"a run of 1 round in .* taken on to 2"):
        play()
    with pytest.raises(ConfigError, match="taken on to 2"):
        run_folders(out)
    # The remedy that the error names.
    home.rename(tmp_path / "apart")
    play()
    assert run_folders(out)[0] == [home]
