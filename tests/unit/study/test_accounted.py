"""Studies over the same records spend one budget: whoever runs, resumes, or hands over other records."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.command_line import securefl as command
from support.every import every
from support.own_records import arrays
from support.own_study import people
from support.private_studies import client_level, noised_fedprof
from support.tiny_study import composed, text, with_privacy
from support.tiny_study import run as played

import securefl
from securefl.accounting.composition import compose
from securefl.accounting.events import NO_COST, dump_charge
from securefl.accounting.shared import SharedRuns, runs_of
from securefl.api.running import Run
from securefl.core.errors import BudgetExceeded, ConfigError
from securefl.mechanisms.charges import allotment, events_of
from securefl.study import world
from securefl.study.accounted import ALONE, allotted, reserve
from securefl.study.arm import arm_folder
from securefl.study.composition import composition
from securefl.study.config import Brought, Study, parse
from securefl.study.interruption import Interrupted, Told
from securefl.study.seeded import Digests
from securefl.study.session import run_study

FEDLOG = '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\n'
DATA = arrays(400, 4)
BROUGHT = Brought(data=DATA)
pytestmark = pytest.mark.filterwarnings("ignore:An arm of Run:RuntimeWarning")
NOISED = {"noise": '"local"', "adversaries": '["server", "others"]', "budget": "3.0", "epsilon": "2.0"}


def shared(tmp_path: Path, *, rounds: int = 2, seeds: str = "[3]", **privacy: str) -> Study:
    """A study at epsilon 2 an arm and seed, beside a ledger with a budget of 3."""
    told = {**NOISED, "ledger": f'"{tmp_path / "people.ledger"}"', **privacy}
    told = {key: value for key, value in told.items() if value}
    return parse(with_privacy(text(FEDLOG, non_private="[]", rounds=rounds, seeds=seeds), told))


def run(study: Study, out: Path) -> Run:
    return securefl.run(study, out=out, workers=1, progress=False)


def held(tmp_path: Path) -> SharedRuns:
    return runs_of(tmp_path / "people.ledger")


def test_without_a_ledger_two_studies_are_told_two_each_and_say_that_they_are_alone(tmp_path: Path) -> None:
    # The attack: nothing adds them up. Both together cost 2.9.
    alone = shared(tmp_path, ledger="", budget="2.0")
    found = [run(alone, tmp_path / name) for name in "ab"]
    assert [own.epsilon.loc["FedLog", "server"] for own in found] == pytest.approx([2.0, 2.0], abs=1e-3)
    for own in found:
        assert ALONE in str(own)
        assert ALONE in own.report().read_text()
        assert json.loads((own.folder / "summary.json").read_text())["accounting"] == ALONE
        assert own.model().card["privacy"]["accounting"] == ALONE
    made = composition(alone, alone.arms[0], world.build(alone, 3))
    once = events_of(made[1], [contribution.spec for contribution in made[0].contributions], "server", 2)
    assert compose(once + once, 1e-4) > 2.7


def test_two_studies_on_one_ledger_cannot_spend_more_than_its_budget(tmp_path: Path) -> None:
    found = run(shared(tmp_path), tmp_path / "a")
    assert "Accounted in the ledger" in str(found)
    assert ALONE not in found.report().read_text()
    assert held(tmp_path).epsilon("server") == pytest.approx(2.0, abs=1e-3)
    run(shared(tmp_path, rounds=1, epsilon="0.9"), tmp_path / "b")
    spent = held(tmp_path)
    assert [entry.what for entry in spent.entries] == ["tiny, FedLog, seed 3"] * 2
    assert 2.1 < spent.epsilon("server") < 2.5
    with pytest.raises(BudgetExceeded, match=r"beside 2 runs .* 1 run"):
        run(shared(tmp_path, rounds=3), tmp_path / "c")
    # Nothing has left, nothing is charged, and no file is written.
    assert held(tmp_path) == spent
    assert not (tmp_path / "c").exists()


def test_a_stopped_run_goes_on_and_is_charged_once(tmp_path: Path) -> None:
    study, told = shared(tmp_path), list[object]()
    with pytest.raises(Interrupted):
        run_study(study, tmp_path / "a", lambda *own: told.append(own), stop=Told(lambda: len(told) == 1))
    before = held(tmp_path)
    found = run(study, tmp_path / "a")
    assert held(tmp_path) == before
    assert len(before.entries) == 1
    assert found.metrics["round"].max() == 2
    # A finished run is only read: its ledger may be anywhere by then.
    (tmp_path / "people.ledger").unlink()
    (tmp_path / "people.ledger-head").unlink()
    assert run(study, tmp_path / "a").metrics["round"].max() == 2
    assert not (tmp_path / "people.ledger").exists()


def test_the_attack_a_begun_run_that_goes_on_under_a_new_ledger_in_place_of_the_lost_one(
    tmp_path: Path,
) -> None:
    """It told epsilon 2.0 where 2.27 was spent, and a third study fitted."""
    run(shared(tmp_path, rounds=1, epsilon="0.9"), tmp_path / "a")
    study, told = shared(tmp_path), list[object]()
    with pytest.raises(Interrupted):
        run_study(study, tmp_path / "b", lambda *own: told.append(own), stop=Told(lambda: len(told) == 1))
    before, kept = held(tmp_path), tmp_path / "kept"
    kept.mkdir()
    for name in ("people.ledger", "people.ledger-head"):
        (tmp_path / name).rename(kept / name)
    for _ in range(2):
        with pytest.raises(ConfigError, match="to hold tiny, FedLog, seed 3, which has begun"):
            run(study, tmp_path / "b")
        with pytest.raises(ConfigError, match="which has begun"):
            played(study, tmp_path / "b")
    assert not (tmp_path / "people.ledger").exists()
    for path in kept.iterdir():
        path.rename(tmp_path / path.name)
    run(study, tmp_path / "b")
    assert held(tmp_path) == before


def test_other_records_and_another_promise_are_refused(tmp_path: Path) -> None:
    run(shared(tmp_path), tmp_path / "a")
    other = shared(tmp_path, epsilon="0.5")
    other = parse(
        other.text.replace('source = "digits"', "classes = 2\npublic_num_examples = 100"), brought=BROUGHT
    )
    with pytest.raises(ConfigError, match="expected the records"):
        securefl.run(other, data=DATA, out=tmp_path / "b", progress=False)
    with pytest.raises(ConfigError, match="expected delta = "):
        run(shared(tmp_path, delta="1e-5"), tmp_path / "c")
    with pytest.raises(ConfigError, match="expected budget = "):
        run(shared(tmp_path, budget="4.0"), tmp_path / "d")
    assert len(held(tmp_path).entries) == 1


def test_records_are_the_same_under_any_seed_partition_and_draw(tmp_path: Path) -> None:
    marks = set()
    for seed in (3, 4):
        for change in ("", 'source = "digits"\nrecords = 300\n'):
            written = shared(tmp_path).text.replace('source = "digits"\n', change or 'source = "digits"\n')
            marks.add(world.build(parse(written), seed).marks.records)
    assert len(marks) == 1
    assert re.fullmatch("[0-9a-f]{64}", marks.pop())


def of_clients(tmp_path: Path, change: tuple[str, str] = ("", ""), **privacy: str) -> Study:
    """A study at epsilon 1 a client, whose six clients have a ledger with a budget of 8."""
    of = {"noise": '"local"', "adversaries": '["server", "others"]', "budget": "8.0", "epsilon": "1.0"}
    told = {**of, "ledger": f'"{tmp_path / "people.ledger"}"', **privacy}
    own = client_level(rounds=1, **told)
    return parse(own.text.replace(*change))


def test_clients_that_are_dealt_anew_are_others(tmp_path: Path) -> None:
    """The attack: under another deal a client's records lie with all clients, whom no sum covers."""
    changes = [
        ("seeds = [3]", "seeds = [4]"),
        ("clients = 6", "clients = 3"),
        ('kind = "iid"', 'kind = "shards", per_client = 2'),
        ('source = "digits"', 'source = "digits"\nrecords = 600'),
    ]
    others = [of_clients(tmp_path, change) for change in [("", ""), *changes]]
    assert len({world.build(own, own.study.seeds[0]).marks.records for own in others}) == 5
    run(of_clients(tmp_path), tmp_path / "a")
    with pytest.raises(ConfigError, match="others under another seed, partition or number of clients"):
        run(others[1], tmp_path / "b")
    assert not (tmp_path / "b").exists()
    # The old deal: more of the same clients' budget.
    run(of_clients(tmp_path, epsilon="0.5"), tmp_path / "c")
    assert len(held(tmp_path).entries) == 2


def test_seeds_that_deal_clients_anew_are_refused_together(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    two = of_clients(tmp_path, ("seeds = [3]", "seeds = [3, 4]"))
    file = tmp_path / "study.toml"
    file.write_text(two.text)
    for words in (["plan", file], ["run", file, "--out", tmp_path / "a"]):
        code, _, err = command(capfd, *words)
        assert code == 1
        assert "Expected one seed with a `ledger`" in err
    assert not (tmp_path / "a").exists()
    # Its three remedies.
    assert command(capfd, "plan", *keep(tmp_path, of_clients(tmp_path)))[0] == 0
    records = shared(tmp_path, seeds="[3, 4]", epsilon="0.5", ledger=f'"{tmp_path / "records.ledger"}"')
    assert command(capfd, "plan", *keep(tmp_path, records))[0] == 0
    own = tmp_path / "own.ledger"
    run(own_clients(own, seeds="[3, 4]"), tmp_path / "d")
    run(own_clients(own), tmp_path / "e")
    assert len(runs_of(own).entries) == 3
    # Other clients of the same records, and clients that would be dealt what each folder's key leaves.
    with pytest.raises(ConfigError, match="records that its check does not fit"):
        run(own_clients(own, 'client_column = "sex"'), tmp_path / "f")
    with pytest.raises(ConfigError, match=r"Expected a `test` part of its own with a `ledger`"):
        run(own_clients(own, "clients = 6", kind="iid"), tmp_path / "g")


PEOPLE = """
target = "ill"
classes = ["no", "yes"]
ignore = ["name"]
public_num_examples = 100
test_share = 0.3
"""
COLUMNS = """
[data.columns]
age = { range = [0, 120] }
dose = { range = [-4, 4] }
sex = { categories = ["f", "m"] }
hospital = { categories = ["north", "south", "west"] }
"""


def keep(tmp_path: Path, study: Study) -> list[Path]:
    (tmp_path / "kept.toml").write_text(study.text)
    return [tmp_path / "kept.toml"]


def own_clients(
    ledger: Path, clients: str = 'client_column = "hospital"', *, seeds: str = "[3]", kind: str = "natural"
) -> Study:
    """A study of clients that a column names, or of dealt ones. Each run tests other records."""
    home = ledger.parent
    people(300).to_csv(home / "people.csv", index=False)
    named = (
        f'[data]\nsource = "{home / "people.csv"}"\n{PEOPLE}{clients}\npartition = {{ kind = "{kind}" }}\n'
    )
    written = of_clients(home, ("seeds = [3]", f"seeds = {seeds}"), ledger=f'"{ledger}"').text
    before, after = written.split("[data]")
    return parse(f"{before}{named}{COLUMNS}[model]{after.split('[model]')[1]}")


def test_the_digest_of_the_records_is_in_no_report(tmp_path: Path) -> None:
    written = shared(tmp_path, epsilon="0.5").text.replace(
        'source = "digits"', "classes = 2\npublic_num_examples = 100"
    )
    study = parse(written, brought=BROUGHT)
    found = securefl.run(study, out=tmp_path / "a", progress=False)
    marks = world.build(study, 3).marks
    for digest in (marks.records, marks.bound["data"]):
        for path in [*found.folder.glob("*.json"), *found.folder.glob("*.html"), tmp_path / "people.ledger"]:
            assert digest[:12].encode() not in path.read_bytes()


@every("told", [{"budget": "inf"}, {"ledger": '""'}])
def test_a_shared_ledger_needs_a_path_and_a_budget(tmp_path: Path, told: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"`ledger`.*`budget`"):
        shared(tmp_path, **told)


def test_a_relative_ledger_lies_beside_the_study(tmp_path: Path) -> None:
    study = shared(tmp_path, ledger='"here.ledger"')
    with pytest.raises(ConfigError, match=r"`ledger`.*without a file"):
        run(study, tmp_path / "a")
    (tmp_path / "study.toml").write_text(study.text)
    securefl.run(tmp_path / "study.toml", out=tmp_path / "a", progress=False)
    assert len(runs_of(tmp_path / "here.ledger").entries) == 1


def test_plan_says_what_the_ledger_holds_and_what_the_study_adds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.toml"
    study.write_text(shared(tmp_path).text)
    code, out, _ = command(capfd, "plan", study)
    assert code == 0
    assert "holds 0 runs over these records. This study adds 1, of a budget of 3" in out
    assert not (tmp_path / "people.ledger").exists()  # nothing is made or charged
    run(shared(tmp_path), tmp_path / "a")
    code, out, _ = command(capfd, "plan", study, "--json")
    said = json.loads(out)["ledger"]
    assert (said["runs"], said["adds"]) == (1, 1)
    assert said["epsilon_after"]["server"] > 2.7
    listed = json.loads(command(capfd, "ledger", "runs", tmp_path / "people.ledger", "--json")[1])
    assert [own["run"] for own in listed["runs"]] == ["tiny, FedLog, seed 3"]
    alone = tmp_path / "alone.toml"
    alone.write_text(shared(tmp_path, ledger="").text)
    assert ALONE in command(capfd, "plan", alone)[1]


def test_parties_apart_have_ledgers_of_their_own(tmp_path: Path) -> None:
    from securefl.deployment.party_setup import PartyStudy

    study = shared(tmp_path)
    with pytest.raises(ConfigError, match="no `ledger`"):
        PartyStudy.of(study, study.arms[0], 3)


def test_an_arm_that_is_run_alone_is_reserved_too(tmp_path: Path) -> None:
    study = shared(tmp_path)
    played(study, tmp_path / "a")
    assert len(held(tmp_path).entries) == 1
    played(study, tmp_path / "b")
    with pytest.raises(BudgetExceeded):
        played(study, tmp_path / "c")


@every("study", [client_level(rounds=3), noised_fedprof(rounds=2)])
def test_an_allotment_is_what_a_client_can_be_charged_and_no_less(tmp_path: Path, study: Study) -> None:
    here = world.build(study, study.study.seeds[0])
    algorithm, plan = composed(study, here)
    allotted = allotment(plan, [contribution.spec for contribution in algorithm.contributions])
    played(study, tmp_path)
    file = arm_folder(tmp_path, study.arms[0], here.seed) / "ledger.sqlite"
    with securefl.Ledger(file, plan.terms()) as ledger:
        charged = Counter((row[0], row[6]) for row in ledger.rows() if row[6] != dump_charge(NO_COST))
    most = {charge: max(n for (_, own), n in charged.items() if own == charge) for _, charge in charged}
    assert most == allotted  # everybody takes part in every round


def test_a_run_that_was_refused_does_not_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same command again is refused again, and finds no folder of the first one."""
    study = shared(tmp_path, seeds="[3, 4]", budget="2.5")
    (tmp_path / "study.toml").write_text(study.text)
    for _ in range(2):
        code, _, err = command(capfd, "run", tmp_path / "study.toml", "--out", tmp_path / "a")
        assert code == 1
        assert "Nothing was released" in err
        assert "Going on" not in err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["study.toml"]


def test_runs_are_reserved_all_or_none_and_over_the_same_records(tmp_path: Path) -> None:
    study = shared(tmp_path, seeds="[3, 4]", budget="2.5")
    made = composition(study, study.arms[0], world.build(study, 3))
    wants = [allotted(study, study.arms[0], seed, made, f"{seed:032x}") for seed in (3, 4)]
    with pytest.raises(BudgetExceeded):
        reserve(study, made[1], Digests(records="these records"), wants)
    assert not held(tmp_path).entries
    reserve(study, made[1], Digests(records="these records"), wants[:1])
    with pytest.raises(ConfigError):
        reserve(study, made[1], Digests(records="other records"), wants[:1])
    assert [entry.what for entry in held(tmp_path).entries] == ["tiny, FedLog, seed 3"]
