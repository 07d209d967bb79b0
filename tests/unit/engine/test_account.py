"""The server's public account of charges is never below a client's own ledger, cut-off rounds included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.every import every
from support.hidden_studies import HIDDEN
from support.private_studies import noised_fedprof
from support.tiny_study import composed, plain, run, study, text, with_privacy

from securefl.accounting.ledger import Ledger
from securefl.accounting.release_table import ReleaseTable
from securefl.core.messages import client_name
from securefl.core.wire import Header
from securefl.engine.account import Account
from securefl.study.arm import arm_folder
from securefl.study.checkpoint import Checkpoint, resume_point
from securefl.study.config import Study, parse

NETWORK = "\n[network]\nreorder = true\ndropout = 0.06\nduplicate = 0.2\n"
FEDAVG = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\naggregation = "partial"\n'
FEDPROF = '[[arm]]\nname = "x"\nprotocol = "fedprof"\nfraction = 0.5\n'
ACTIVE = '[[arm]]\nname = "x"\nprotocol = "active_fl"\nfraction = 0.5\n'
CLIENTS = 6
HERE = Header(session=bytes(32), round=1, attempt=0, stage=0)


def hidden(how: str) -> Study:
    written = text(FEDAVG, clients=CLIENTS, rounds=3, extra=NETWORK)
    return parse(with_privacy(written, HIDDEN | {"sum": f'"{how}"', "max_retries": "3"}))


CASES = {
    "clear": lambda: study(FEDAVG, rounds=3, extra=NETWORK),
    "masked": lambda: hidden("masked"),
    "ckks": lambda: hidden("ckks"),
    "two-server": lambda: hidden("two-server"),
    "profiles": lambda: study(FEDPROF, rounds=3, scores="ckks", extra=NETWORK),
    "losses": lambda: study(ACTIVE, rounds=3, extra=NETWORK),
    "noised profiles": lambda: parse(noised_fedprof(rounds=3, budget="30.0").text + NETWORK),
}


def account_of(of: Study, records: list[dict[str, Any]]) -> Account:
    algorithm, plan = composed(of)
    account = Account(
        plan,
        {contribution.spec.name: contribution.spec for contribution in algorithm.contributions},
        of.data.clients,
    )
    account.restore(resume_point(record, of.data.clients).charged for record in records)
    return account


def never_below(of: Study, folder: Path, records: list[dict[str, Any]]) -> None:
    account, plan = account_of(of, records), composed(of)[1]
    with Ledger(arm_folder(folder, of.arms[0], of.study.seeds[0]) / "ledger.sqlite", plan.terms()) as ledger:
        anew = ReleaseTable(ledger._db, lambda: ledger.head)
        filed = {k: anew.counted(client_name(k)) for k in range(of.data.clients)}
    assert any(filed.values())
    for client, own in filed.items():
        counted = dict(account.counts.counted(client))
        for release, times in own:
            assert counted.get(release, 0) >= times, (client, release)


@every("name", CASES)
def test_no_client_is_charged_more_than_the_server_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = CASES[name]()
    whole = run(of, tmp_path / "whole").records
    never_below(of, tmp_path / "whole", whole)

    save = Checkpoint.save

    def cut(self: Checkpoint, number: int, *args: Any) -> None:
        if number == 2:
            raise KeyboardInterrupt
        save(self, number, *args)

    with monkeypatch.context() as at:
        at.setattr(Checkpoint, "save", cut)
        with pytest.raises(KeyboardInterrupt):
            run(of, tmp_path / "cut")
    resumed = run(of, tmp_path / "cut").records
    never_below(of, tmp_path / "cut", resumed)
    for a, b in zip(whole, resumed, strict=True):
        assert (a["retired"], a["charged"], a["retries_left"]) == (
            b["retired"],
            b["charged"],
            b["retries_left"],
        )
    if "profiles" not in name:  # scores carry fresh noise
        assert plain(whole) == plain(resumed)


def resting(separation: int, rounds: Any = (), period: int = 1) -> tuple[Account, str]:
    """An account of two values under this separation, and the name of the first."""
    algorithm, plan = composed(study(FEDAVG, rounds=9))
    spec = next(one.spec for one in algorithm.contributions)
    other = replace(spec, name="other", schedule=replace(spec.schedule, period=period))
    plan = replace(plan, separation=separation, non_private=(spec.name, "other"))
    account = Account(plan, {spec.name: spec, "other": other}, CLIENTS)
    account.restore(rounds)
    return account, spec.name


def test_clients_rest_as_many_rounds_as_the_plan_says() -> None:
    account, name = resting(3, period=2)
    rounds = []
    for number, clients in ((1, (0, 1)), (2, (2,)), (4, (1,))):
        account.query([name], clients, replace(HERE, round=number), initial=False)
        account.query(["other"], (5,), replace(HERE, round=number), initial=False)
        rounds.append(account.news())
    rounds.insert(2, [])  # nobody was asked in round 3
    for one in (account, resting(3, rounds, period=2)[0]):
        found = [one.resting(number) for number in range(4, 8)]
        assert found == [{2}, {1}, {1}, set()], "in round 4 again: a round that was cut off is played again"
    assert resting(1)[0].resting(2) == set()


def test_clients_rest_from_the_values_that_they_sent_alone() -> None:
    """As in their ledgers: who trained in round 1 may still evaluate in round 2."""
    account, first = resting(3)
    for name, number, client in ((first, 1, 0), ("other", 2, 1), ("other", 2, 0)):
        account.query([name], (client,), replace(HERE, round=number), initial=False)
    assert [account.resting(number, first) for number in (2, 3, 4)] == [{0}, {0}, set()]
    assert [account.resting(number, "other") for number in (2, 3, 4, 5)] == [set(), {0, 1}, {0, 1}, set()]
    assert account.resting(4) == {0, 1}, "of all values, as a protocol needs that draws one cohort for them"


def test_a_server_on_its_books_counts_the_orders_of_one_that_was_killed() -> None:
    of = study(FEDAVG, rounds=3)
    algorithm, plan = composed(of)
    specs = {one.spec.name: one.spec for one in algorithm.contributions}
    (name,) = specs
    with Ledger(None, replace(plan, budget=0.0).terms()) as books:
        Account(plan, specs, CLIENTS, books).query([name], (0, 1, 2), HERE, initial=False)
        again = Account(plan, specs, CLIENTS, books)
        again.query([name], (0, 1, 3), HERE, initial=False)
        assert again.news() == [(name, False, (0, 1, 2, 3))]
        again.query([name], (0,), replace(HERE, attempt=1), initial=False)
        again.query([name], (1,), replace(HERE, round=2), initial=True)
        assert again.news() == [(name, False, (0,)), (name, True, (1,))]
        filed = ReleaseTable(books._db, lambda: books.head)
        for client in range(CLIENTS):
            assert again.counts.counted(client) == filed.counted(client_name(client))
