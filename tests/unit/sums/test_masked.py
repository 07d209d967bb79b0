"""Masked sums inside a study: retries, charges, kept bookings, and noise that is sized for the survivors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from support import tiny_parties
from support.every import every
from support.hidden_plans import hidden
from support.hidden_studies import counts, rows, shares_of_noise
from support.liars import wrong_pair
from support.tiny_parties import attempt, session
from support.tiny_study import FEDAVG, composed, run, spied, text, with_privacy, world

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ByDraws, CohortQuery, Sum, ValueSpec
from securefl.core.errors import ConfigError
from securefl.core.machine import Outgoing, Step
from securefl.core.wire import Header
from securefl.engine.account import Account
from securefl.engine.inprocess import InProcess
from securefl.secagg import Client
from securefl.secagg.messages import Shares
from securefl.study.config import Study, parse
from securefl.study.run import run_arm
from securefl.sums import masked
from securefl.sums.masked import Masked

CLIENTS = 7


def clear(*, rounds: int = 1, protocol: str = "fedavg") -> str:
    options = {
        "fedavg": 'fraction = 1.0\naggregation = "partial"',
        "lg_fedavg": "layers = 1",
        "fedlog": 'body = "private"',
    }
    arm = f'[[arm]]\nname = "x"\nprotocol = "{protocol}"\n{options[protocol]}\n'
    permitted = '["statistic", "counts"]' if protocol == "fedlog" else '["update"]'
    return text(arm, clients=CLIENTS, rounds=rounds, non_private=permitted)


HIDDEN = {"sum": '"masked"', "dropout": "0.3", "corrupt": "0.15", "min_cohort_size": "5"}


def study(max_retries: int, **of: Any) -> Study:
    accepted = "" if of.get("protocol", "fedavg") == "fedavg" else "accepts_kept_state = true\n"
    return parse(with_privacy(clear(**of) + accepted, HIDDEN | {"max_retries": str(max_retries)}))


class Liar(Client):
    """Deals wrong shares, well signed. `lying` says from which Ask of a round on."""

    lying: ClassVar = {"client-0003": (1, 0)}

    def provide(self, state: Any, answer: Any) -> Step[Any]:
        step = super().provide(state, answer)
        at = self.agreement.header
        if (at.round, at.stage) < self.lying.get(self.name, (99,)) or not step.out:
            return step
        (envelope,) = step.out
        if not isinstance(envelope.message, Shares):
            return step
        return replace(step, out=(Outgoing(envelope.to, wrong_pair(self, step.state, envelope.message)),))


class TwoLiars(Liar):
    lying: ClassVar = {"client-0003": (1, 0), "client-0005": (1, 0)}


@every(
    ("protocol", "since"),
    [("fedavg", (1, 0)), ("lg_fedavg", (1, 0)), ("lg_fedavg", (2, 0)), ("fedlog", (1, 1))],
)
def test_a_bad_dealer_ends_the_attempt_and_the_next_goes_on_without_it(
    protocol: str, since: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a run that lost it. Whoever trained for the ended attempt trains no further for the next."""
    of = study(max_retries=1, rounds=2, protocol=protocol)
    with monkeypatch.context() as patch:
        patch.setattr(masked, "Client", Liar)
        patch.setattr(Liar, "lying", {"client-0003": since})
        spy, finished = spied(of, tmp_path)
    record = finished.records[since[0] - 1]
    assert set(record["rejected_from"]) == {"client-0003"}
    assert record["answered"] == [0, 1, 2, 4, 5, 6]
    assert "phase share" in record["abstained"]["server"]

    exchange = InProcess.query

    def without(self: InProcess, query: CohortQuery, header: Header, network: Any) -> Any:
        if header.round > since[0]:  # it is chosen no more
            cohort = tuple(k for k in query.cohort if k != 3)
            weights = query.weights and ByDraws(dict.fromkeys(cohort, 1))
            query = replace(query, cohort=cohort, weights=weights)
        elif (header.round, header.stage) >= since:  # it was chosen, and its answer is lost
            network._tamper = lambda sender, to, data: b"" if sender == "client-0003" else data
        return exchange(self, query, header, network)

    monkeypatch.setattr(InProcess, "query", without)
    # FedLog's counts travel apart in hidden sums alone, and there an absent client counts with the means.
    other = of if protocol == "fedlog" else parse(clear(rounds=2, protocol=protocol))
    expected, _ = spied(other, tmp_path / "other")
    for one, other in zip(spy.states, expected.states, strict=True):
        assert np.array_equal(one.broadcast, other.broadcast)


@every(("liars", "max_retries"), [(Liar, 0), (TwoLiars, 1)])
def test_without_a_spare_attempt_the_sum_is_not_opened(
    liars: type[Liar], max_retries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked, "Client", liars)
    spy, finished = spied(study(max_retries), tmp_path)
    assert finished.records[0]["answered"] == []
    assert finished.records[0]["proven_cheaters"] == [int(name[-4:]) for name in liars.lying]
    assert np.array_equal(spy.states[0].broadcast, spy.states[-1].broadcast)


def cut_off_after(record: Any) -> None:
    raise KeyboardInterrupt


@every("resumed", [False, True])
def test_a_proven_culprit_is_asked_no_more(
    resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One spare attempt is enough for it in the whole run; a process that goes on with the run knows it."""
    monkeypatch.setattr(masked, "Client", Liar)
    of = study(max_retries=1, rounds=3)
    if resumed:
        with pytest.raises(KeyboardInterrupt):
            run_arm(of, of.arms[0], world(of), tmp_path, cut_off_after)
    first, *later = run(of, tmp_path).records
    assert set(first["rejected_from"]) == {"client-0003"}
    assert [record["answered"] for record in later] == [[0, 1, 2, 4, 5, 6]] * 2
    assert [record["selected"] for record in later] == [[0, 1, 2, 4, 5, 6]] * 2
    assert not any(record["rejected_from"] or record["abstained"] for record in later)
    assert [record["proven_cheaters"] for record in (first, *later)] == [[3], [], []]
    assert not any(record["retired"] or record["ended"] for record in (first, *later))


def test_a_run_ends_with_its_last_honest_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the culprit have spent their budgets: nobody is left to ask."""
    monkeypatch.setattr(masked, "Client", Liar)
    spent = frozenset(range(CLIENTS)) - {3}
    monkeypatch.setattr(Account, "retired", lambda self, number: spent if number == 2 else frozenset())
    (record,) = run(study(max_retries=1, rounds=3), tmp_path).records
    assert (record["retired"], record["proven_cheaters"], record["ended"]) == (sorted(spent), [3], True)


def test_spare_attempts_are_counted_over_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one spare attempt is used in round 1; a process that goes on with the run has none left."""
    monkeypatch.setattr(masked, "Client", Liar)
    monkeypatch.setattr(Liar, "lying", {"client-0003": (1, 0), "client-0005": (2, 0)})
    of = study(max_retries=1, rounds=3)
    with pytest.raises(KeyboardInterrupt):
        run_arm(of, of.arms[0], world(of), tmp_path, cut_off_after)
    records = run(of, tmp_path).records
    assert [record["answered"] for record in records] == [[0, 1, 2, 4, 5, 6], [], [0, 1, 2, 4, 6]]
    assert [record["proven_cheaters"] for record in records] == [[3], [5], []]
    assert [record["retries_left"] for record in records] == [0, 0, 0]


def test_a_masked_release_that_was_sent_stays_booked_when_the_round_aborts(tmp_path: Path) -> None:
    """Four of seven answers are lost after the masked inputs went out: nothing opens, the charges stand."""
    of = parse(study(max_retries=0, rounds=3).text + "\n[network]\ndropout = 0.12\n")
    finished = run(of, tmp_path)
    lost = [n for n, record in enumerate(finished.records, start=1) if not record["answered"]]
    booked = {row[2] for row in rows(of, tmp_path) if row[5] == "update" and row[7] == "committed"}
    assert lost, "choose another seed: every sum was opened"
    assert set(lost) & booked, "choose another seed: no input was sent in a round that aborted"


def test_every_attempt_has_its_own_place_and_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt fails after some masked inputs went out; they are booked twice."""
    of = parse(study(max_retries=3, rounds=2).text + "\n[network]\ndropout = 0.05\n")
    run(of, tmp_path)
    places = {(row[2], row[4]) for row in rows(of, tmp_path)}
    assert len(places) > len({number for number, _ in places})
    per_place = [(row[0], *row[2:5]) for row in rows(of, tmp_path)]
    assert len(per_place) == len(set(per_place))


def asked(clients: Iterable[int]) -> CohortQuery:
    sums = (Sum(ValueSpec(name="own", reduction="sum", reveals="it"), 3),)
    return CohortQuery(cohort=tuple(clients), broadcast=np.zeros(1, np.float32), sums=sums)


def planned(clients: int, least: int) -> Masked:
    own = Plan(delta=1e-5, max_rounds=5, corrupt=0.0, dropout=0.3, non_private=("own",))
    return Masked(hidden(own, clients, min_cohort_size=least))


def test_clients_of_any_number_are_masked() -> None:
    """A roster is in the order of names, in which client 10000 comes before client 9999."""
    query = asked(range(9996, 10001))
    one = attempt(query, query.cohort, Header(bytes(32), 1, 1, 0))
    found = tiny_parties.machines(planned(5, 3), one, session(query.cohort))
    assert found.keys() == {"server", *(f"client-{k}" for k in query.cohort)}


def test_a_client_keeps_the_channels_of_few_cohorts() -> None:
    """A server may call to as many cohorts as it likes: it does not fill a client's memory by that."""
    parties = session(range(24))
    side = planned(24, 5).clients(parties.directory)
    own = [parties.identities["client-0000"]]
    for missing in range(1, 24):
        cohort = [k for k in range(24) if k != missing]
        at = Header(parties.directory.session, 1, missing, 0)
        side.machines(attempt(asked(range(24)), cohort, at), own, b"")
    assert len(side._channels["client-0000"]) == masked.MOST_COHORTS


# What is told before anything runs ---------------------------------------------------------------


def assert_composed(written: str, said: str | None) -> None:
    """Or refused with these words."""
    of = parse(written)
    if said is None:
        composed(of)
    else:
        with pytest.raises(ConfigError, match=said):
            composed(of)


@every(
    ("fraction", "said"),
    [(1.0, None), (0.85, "at least 6 survivors of 8 clients"), (0.1, "clients would refuse every order")],
)
def test_what_is_asked_for_must_be_had_for_the_cohorts_that_are_asked(
    fraction: float, said: str | None
) -> None:
    """Of 9 clients with 0.4 dropping and 0.2 corrupt: nothing that holds for 9 needs to hold for 8."""
    arm = FEDAVG.replace("fraction = 0.5", f"fraction = {fraction}")
    privacy = HIDDEN | {
        "dropout": "0.4",
        "corrupt": "0.2",
        "min_cohort_size": "7",
        "max_client_weight": "0.51",
    }
    assert_composed(with_privacy(text(arm, clients=9), privacy | counts(9)), said)


@every(("epsilon", "said"), [(2.0, None), (1e-6, "too fine .* Take a coarser grid"), (1e4, "too coarse")])
def test_shares_of_noise_must_fit_the_grid(epsilon: float, said: str | None) -> None:
    written = shares_of_noise(CLIENTS)
    assert_composed(with_privacy(written, {"epsilon": str(epsilon), "delta": "1e-9"}), said)
