"""The ledger: nothing leaves uncounted, whatever is tried, whoever else writes, whenever it is killed."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, NoOpDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from support.every import every
from support.started import Started
from support.tiny_orders import order

from securefl.accounting.composition import compose
from securefl.accounting.events import NO_COST, NON_PRIVATE, steps_event
from securefl.accounting.ledger import DeclaredQuery, Ledger, Terms
from securefl.core.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    LocalProtocolError,
    SecureFLError,
    UnaccountedRelease,
    UnsupportedEvent,
)
from securefl.core.messages import ContributionMessage, Order
from securefl.core.release import KEY_HOLDER, OTHERS, SERVER, Charge, Release, ReleaseKey
from securefl.core.wire import Header, Limit, decode

SESSION = bytes(range(32))
HERE = Header(SESSION, 1, 0, 0)
TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)
GAUSSIAN = Charge(server=GaussianDpEvent(2.0), key_holder=NoOpDpEvent(), others=GaussianDpEvent(4.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger(path, TERMS) as opened:
        yield opened


def key(holder: str = "a", number: int = 1, name: str = "update") -> ReleaseKey:
    return ReleaseKey(holder, SESSION, number, 0, 0, name)


def release(k: ReleaseKey, charge: Charge = GAUSSIAN, **changed: Any) -> Release:
    parts = {"unit": "record", "form": "open", "_numbers": np.array([42.5]), **changed}
    return Release(key=k, charge=charge, **parts)


def send(ledger: Ledger, *releases: Release) -> bytes:
    return ledger.send([(HERE, ContributionMessage(releases=releases))])[0]


def note_of(path: Path) -> Path:
    return path.with_name(path.name + "-head")


def states(ledger: Ledger) -> dict[tuple[Any, ...], str]:
    return {row[:6]: row[7] for row in ledger.rows()}


# The way it should go -----------------------------------------------------------------------------


def test_reserve_then_send_commits_and_encodes(ledger: Ledger) -> None:
    assert not ledger.reserve([(key(), GAUSSIAN)])
    assert list(states(ledger).values()) == ["reserved"]
    data = send(ledger, release(key()))
    assert list(states(ledger).values()) == ["committed"]
    got = decode(data, HERE, {ContributionMessage: Limit(1000, 9)}, "a").releases[0]
    assert (got.name, got.numbers.tolist()) == ("update", [42.5])  # type: ignore[attr-defined]


def test_open_commits_and_gives_the_value_once(ledger: Ledger) -> None:
    ledger.reserve([(key(), GAUSSIAN)])
    numbers, sealed = ledger.open(release(key()))
    assert (numbers.tolist(), sealed) == ([42.5], b"")
    assert list(states(ledger).values()) == ["committed"]
    with pytest.raises(UnaccountedRelease):
        ledger.open(release(key()))


def test_open_gives_the_numbers_of_a_value_that_travels_sparse(ledger: Ledger) -> None:
    ledger.reserve([(key(), GAUSSIAN)])
    whole = np.array([0, 7, 0], np.int32)
    numbers, sealed = ledger.open(release(key(), form="sparse", _numbers=whole))
    assert (numbers.tolist(), sealed) == ([0, 7, 0], b"")


def test_a_message_without_a_release_costs_nothing(ledger: Ledger) -> None:
    said = order("x")
    assert decode(ledger.send([(HERE, said)])[0], HERE, {Order: Limit(1000, 9)}, "server") == said
    assert ledger.rows() == []


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tried",
    [
        [release(key(name="other"))],
        [release(key(holder="b"))],
        [release(key(number=2))],
        [release(replace(key(), session=bytes(32)))],
        [release(replace(key(), stage=1))],
        [release(replace(key(), attempt=1))],
        [release(key(), NO_COST)],
        [release(key(), replace(GAUSSIAN, server=GaussianDpEvent(2.0000001)))],
        [release(key(), unit="client")],
        [release(key()), release(key())],
        [release(key()), release(key(name="other"))],
    ],
    ids=[
        "never reserved",
        "of another holder",
        "of another round",
        "of another session",
        "of another stage",
        "of another attempt",
        "without its charge",
        "with a slightly cheaper charge",
        "of another unit",
        "twice in one message",
        "beside one never reserved",
    ],
)
def test_a_release_that_does_not_fit_its_reservation_does_not_leave(
    ledger: Ledger, tried: list[Release]
) -> None:
    ledger.reserve([(key(), GAUSSIAN)])
    with pytest.raises(UnaccountedRelease, match="Reserve it first"):
        send(ledger, *tried)
    assert list(states(ledger).values()) == ["reserved"]
    assert send(ledger, release(key()))  # the good one still can


def test_one_bad_message_keeps_the_whole_outbox_in(ledger: Ledger) -> None:
    ledger.reserve([(key("a"), GAUSSIAN)])
    outbox = [(HERE, ContributionMessage(releases=(release(key(h)),))) for h in ("a", "b")]
    with pytest.raises(UnaccountedRelease):
        ledger.send(outbox)
    assert list(states(ledger).values()) == ["reserved"]


def test_a_release_leaves_once(ledger: Ledger) -> None:
    ledger.reserve([(key(), GAUSSIAN)])
    one = release(key())
    send(ledger, one)
    for again in (one, release(key())):
        with pytest.raises(UnaccountedRelease, match="send it once"):
            send(ledger, again)


@pytest.mark.parametrize("sent", [False, True])
def test_a_key_is_used_once_and_a_replay_reserves_nothing_for_anybody(ledger: Ledger, sent: bool) -> None:
    ledger.reserve([(key("b"), GAUSSIAN)])
    if sent:
        send(ledger, release(key("b")))
    before = ledger.rows()
    with pytest.raises(LocalProtocolError, match="'update' of b, got round 1"):
        ledger.reserve([(key("a"), GAUSSIAN), (key("b"), NO_COST), (key("c"), GAUSSIAN)])
    with pytest.raises(LocalProtocolError, match="Expected each value once"):
        ledger.reserve([(key("d"), GAUSSIAN), (key("d"), NO_COST)])
    assert ledger.rows() == before
    assert ledger.reserve([(replace(key("b"), attempt=1), GAUSSIAN)]) == {}
    assert len(ledger.rows()) == len(before) + 1


def test_what_was_sent_is_sent_again_in_the_same_words_alone_and_costs_nothing(path: Path) -> None:
    """A party that was cut off between record and answer repeats its answer; another version is refused."""
    with Ledger(path, replace(TERMS, budget=None)) as ledger:
        ledger.reserve([(key(), GAUSSIAN)])
        said = release(key(), content=b"fingerprint")
        assert ledger.repeats(said)
        first = send(ledger, said)
        assert not ledger.repeats(release(key(), content=b"another"))
        spent = ledger.epsilon("a", SERVER)
    with Ledger(path, replace(TERMS, budget=None)) as ledger:
        assert ledger.reserve([(key(), GAUSSIAN)]) == {}
        assert send(ledger, said) == first
        assert ledger.epsilon("a", SERVER) == spent
        for other in (release(key(), content=b"another"), release(key())):
            assert not ledger.repeats(other)
            with pytest.raises(UnaccountedRelease, match="another content"):
                send(ledger, other)


def test_a_wave_that_was_rolled_back_reserved_nothing_anew(path: Path) -> None:
    with Ledger(path, TERMS) as ledger, Ledger(path, TERMS) as other:
        with pytest.raises(LocalProtocolError, match="once in a batch"):
            ledger.reserve([(key(), GAUSSIAN), (key(), GAUSSIAN)])
        other.reserve([(key(), GAUSSIAN)])
        send(other, release(key(), content=b"theirs"))
        assert not ledger.repeats(release(key(), content=b"ours"))


def test_a_release_that_another_process_sent_in_between_is_sent_in_its_words_alone(path: Path) -> None:
    with Ledger(path, TERMS) as ledger, Ledger(path, TERMS) as other:
        ledger.reserve([(key(), GAUSSIAN)])
        other.reserve([(key(), GAUSSIAN)])
        first = send(other, release(key(), content=b"theirs"))
        with pytest.raises(UnaccountedRelease, match="another content"):
            send(ledger, release(key(), content=b"ours"))
        assert send(ledger, release(key(), content=b"theirs")) == first


@pytest.mark.parametrize("charge", [NON_PRIVATE, NO_COST])
def test_what_has_no_finite_price_is_repeated_without_a_fingerprint(ledger: Ledger, charge: Charge) -> None:
    ledger.reserve([(key(), charge)])
    send(ledger, release(key(), charge=charge))
    send(ledger, release(key(), charge=charge))
    assert len(ledger.rows()) == 1


@pytest.mark.parametrize("budget", [None, 5.0])
def test_an_event_it_cannot_compose_is_refused(path: Path, budget: float | None) -> None:
    odd = replace(GAUSSIAN, others=LaplaceDpEvent(1.0))
    with Ledger(path, replace(TERMS, budget=budget)) as ledger:
        with pytest.raises(UnsupportedEvent):
            ledger.reserve([(key("b"), GAUSSIAN), (key(), odd)])
        assert ledger.rows() == []


# The budget ---------------------------------------------------------------------------------------


def test_a_wave_is_all_or_nothing_for_each_holder(path: Path) -> None:
    one = compose({GaussianDpEvent(2.0): 1}, 1e-5)
    with Ledger(path, replace(TERMS, budget=one * 1.01)) as ledger:
        wave = [
            (key("a"), GAUSSIAN),
            (key("b"), GAUSSIAN),
            (key("b", name="loss"), GAUSSIAN),
            (key("c"), GAUSSIAN),
        ]
        refused = ledger.reserve(wave)
        assert set(refused) == {"b"}
        assert {row[0] for row in ledger.rows()} == {"a", "c"}
        assert ledger.epsilon("b", SERVER) == 0
        with pytest.raises(UnaccountedRelease):
            send(ledger, release(key("b")))
        assert ledger.reserve([(key("b"), GAUSSIAN)]) == {}


def test_the_refusal_says_what_is_spent_asked_and_allowed(path: Path) -> None:
    one, two = (compose({GaussianDpEvent(2.0): n}, 1e-5) for n in (1, 2))
    with Ledger(path, replace(TERMS, budget=2.5)) as ledger:
        ledger.reserve([(key("a", 1), GAUSSIAN)])
        refusal = ledger.reserve([(key("a", 2), GAUSSIAN)])["a"]
    assert isinstance(refusal, BudgetExceeded)
    asks, left = f"got {two - one:.4g}", f"at most epsilon {2.5 - one:.4g} against"
    for said in ("a:", asks, left, "the server", "0 rounds like it remain", "keeps its budget: add noise"):
        assert said in str(refusal)


def test_what_is_reserved_counts_though_it_never_leaves(path: Path) -> None:
    with Ledger(path, replace(TERMS, budget=2.5)) as ledger:
        assert ledger.reserve([(key("a", 1), GAUSSIAN)]) == {}
    with Ledger(path, replace(TERMS, budget=2.5)) as ledger:  # as after a crash
        assert ledger.epsilon("a", SERVER) == compose({GaussianDpEvent(2.0): 1}, 1e-5)
        assert set(ledger.reserve([(key("a", 2), GAUSSIAN)])) == {"a"}


@pytest.mark.parametrize("adversaries", [(SERVER,), (OTHERS,), (KEY_HOLDER,), (KEY_HOLDER, OTHERS)])
def test_the_budget_holds_against_the_named_parties_alone(path: Path, adversaries: tuple[str, ...]) -> None:
    with Ledger(path, replace(TERMS, budget=1.5, adversaries=adversaries)) as ledger:
        refused = ledger.reserve([(key(), GAUSSIAN)])  # 1.99 against the server, 0.93 against the others
    assert set(refused) == ({"a"} if SERVER in adversaries else set())


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1.5, 3.0, 8.0])), max_size=12))
@settings(max_examples=30)
def test_no_wave_ever_breaks_the_budget(wave: list[tuple[str, float]]) -> None:
    with Ledger(None, replace(TERMS, budget=4.0)) as ledger:
        for number, (holder, z) in enumerate(wave):
            before = ledger.epsilon(holder, SERVER)
            charge = replace(GAUSSIAN, server=GaussianDpEvent(z))
            refused = ledger.reserve([(key(holder, number), charge)])
            assert before <= ledger.epsilon(holder, SERVER) <= 4.0
            assert (ledger.epsilon(holder, SERVER) == before) == bool(refused)


def test_non_private_is_infinite_against_each_party_that_receives_it(ledger: Ledger) -> None:
    ledger.reserve([(key("a"), NON_PRIVATE), (key("b"), GAUSSIAN)])
    assert [ledger.epsilon("a", p) for p in (SERVER, OTHERS, KEY_HOLDER)] == [math.inf, math.inf, 0.0]
    assert 0 < ledger.epsilon("b", SERVER) < math.inf
    assert (ledger.worst(SERVER), ledger.worst(KEY_HOLDER)) == (math.inf, 0.0)
    assert ledger.epsilon("nobody", SERVER) == 0
    for figure in (partial(ledger.epsilon, "a"), partial(ledger.epsilon, "nobody"), ledger.worst):
        with pytest.raises(ConfigError, match="party among server, key-holder, others, got 'Server'"):
            figure("Server")


def test_what_is_spent_is_what_the_composition_says(ledger: Ledger) -> None:
    for number in range(7):
        ledger.reserve([(key("a", number), GAUSSIAN), (key("a", number, "size"), NO_COST)])
    ledger.reserve([(key("b", 0), GAUSSIAN)])
    assert ledger.epsilon("a", SERVER) == compose({GaussianDpEvent(2.0): 7}, 1e-5)
    assert ledger.epsilon("a", OTHERS) == compose({GaussianDpEvent(4.0): 7}, 1e-5)
    assert ledger.worst(SERVER) == ledger.epsilon("a", SERVER) > ledger.epsilon("b", SERVER)


# Terms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"delta": 1e-6},
        {"unit": "client"},
        {"adjacency": "add-remove"},
        {"budget": 8.0},
        {"adversaries": (SERVER,)},
    ],
    ids=str,
)
def test_the_terms_are_fixed_when_the_ledger_is_made(path: Path, other: dict[str, Any]) -> None:
    Ledger(path, TERMS).close()
    with pytest.raises(ConfigError, match=f"Expected {next(iter(other))}"):
        Ledger(path, replace(TERMS, **other))
    Ledger(path, TERMS).close()


@every(
    "wrong",
    [
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": math.nan},
        {"budget": -1.0},
        {"budget": math.nan},
        {"adversaries": ("x",)},
        {"max_releases": {"update": 0}},
    ],
)
def test_terms_without_meaning_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        replace(TERMS, **wrong)


# Other processes, and the end of this one ---------------------------------------------------------

_CHILDREN = """
import os, random, signal, sys, time, traceback
import numpy as np
from securefl.accounting.figures import brief
from securefl.accounting.ledger import DeclaredQuery, Ledger, Terms
from securefl.core.messages import ContributionMessage
from securefl.accounting.events import NON_PRIVATE
from securefl.core.release import Release, ReleaseKey
from securefl.core.wire import Header

TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)

def work(path, holder, numbers, told):
    ledger = Ledger(path, TERMS)
    for number in numbers:
        key = ReleaseKey(holder, bytes(32), number, 0, 0, "update")
        ledger.reserve([(key, NON_PRIVATE)])
        release = Release(key=key, unit="record", form="open", charge=NON_PRIVATE, _numbers=np.ones(1))
        ledger.send([(Header(bytes(32), number, 0, 0), ContributionMessage(releases=(release,)))])
        os.write(told, b"%s %d\\n" % (holder.encode(), number))
        os.fsync(told)

def child(*args):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid
"""

_TOGETHER = """
path, told = sys.argv[1], os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
children = [child(path, f"holder-{i}", range(60), told) for i in range(3)]
sys.exit(any([os.waitpid(pid, 0)[1] for pid in children]))
"""

_KILLED = """
path, told = sys.argv[1], os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
rng = random.Random(7)
for life in range(12):
    start = os.fstat(told).st_size
    pid = child(path, f"life-{life}", range(10**9), told)
    while os.fstat(told).st_size <= start:
        time.sleep(0.001)
    time.sleep(0.02 * rng.random())
    os.kill(pid, signal.SIGKILL)
    if os.waitpid(pid, 0)[1] != signal.SIGKILL:
        sys.exit(1)
"""


def _run(script: str, path: Path, told: Path) -> set[tuple[str, int]]:
    done = Started("-c", _CHILDREN + script, path, told)
    assert done.wait() == 0, done.stderr
    return {(line.split()[0], int(line.split()[1])) for line in told.read_text().splitlines()}


def test_processes_that_write_together_lose_nothing(path: Path, tmp_path: Path) -> None:
    told = _run(_TOGETHER, path, tmp_path / "told")
    assert told == {(f"holder-{i}", number) for i in range(3) for number in range(60)}
    with Ledger(path, TERMS) as ledger:
        assert {(row[0], row[2]) for row in ledger.rows() if row[7] == "committed"} == told


def test_a_ledger_that_another_process_is_just_making_is_waited_for(path: Path) -> None:
    """The switch to the write-ahead log fails at once beside a writer: SQLite's timeout does not cover it."""
    outcome: list[object] = []

    def open_it() -> None:
        try:
            with Ledger(path, TERMS) as ledger:
                outcome.append(ledger.rows())
        except SecureFLError as error:
            outcome.append(error)

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        opening = threading.Thread(target=open_it)
        opening.start()
        opening.join(0.3)
        other.execute("COMMIT")
    opening.join()
    assert outcome == [[]]


def test_kill_9_forgets_nothing_that_left(path: Path, tmp_path: Path) -> None:
    told = _run(_KILLED, path, tmp_path / "told")
    assert {holder for holder, _ in told} == {f"life-{i}" for i in range(12)}
    with Ledger(path, TERMS) as ledger:
        committed = {(row[0], row[2]) for row in ledger.rows() if row[7] == "committed"}
        assert told <= committed
        assert all(ledger.epsilon(holder, SERVER) == math.inf for holder, _ in told)


# Steps, schedules, filters, and what may happen to a file ---------------------------------------

STEPS = Charge(server=steps_event(0.02, 1.1, 50), key_holder=NoOpDpEvent(), others=NoOpDpEvent())
SLIM = Charge(server=GaussianDpEvent(10.0), key_holder=NoOpDpEvent(), others=NoOpDpEvent())


@pytest.mark.parametrize(
    ("budget", "rounds"), [(2.0, 5), (4.0, 22), pytest.param(8.0, 75, marks=pytest.mark.slow)]
)
def test_a_budget_buys_the_rounds_the_specification_names(budget: float, rounds: int, path: Path) -> None:
    """Ledger A of the specification (section 5)."""
    with Ledger(path, replace(TERMS, budget=budget, adversaries=(SERVER,))) as ledger:
        assert ledger.rounds_left("a", [STEPS, SLIM], most=100) == rounds


def test_rounds_are_refused_one_by_one_as_the_budget_ends(path: Path) -> None:
    with Ledger(path, replace(TERMS, budget=2.0, adversaries=(SERVER,))) as ledger:
        for number in range(1, 6):
            wants = [(key("a", number, name="train"), STEPS), (key("a", number, name="profile"), SLIM)]
            assert ledger.rounds_left("a", [STEPS, SLIM], most=100) == 6 - number
            assert ledger.reserve(wants) == {}
        assert ledger.epsilon("a", SERVER) == pytest.approx(1.8666, abs=2e-4)
        wants = [(key("a", 6, name="train"), STEPS), (key("a", 6, name="profile"), SLIM)]
        assert "0 rounds like it remain" in str(ledger.reserve(wants)["a"])
        assert len(ledger.rows()) == 10


def test_a_schedule_cannot_be_overrun(path: Path) -> None:
    """sigma for k releases promises nothing for release k + 1, nor for one of another name."""
    max_releases = {"update": 2, "other": 1}
    with Ledger(path, replace(TERMS, max_releases=max_releases)) as ledger:
        assert ledger.reserve([(key("a", 1), SLIM), (key("a", 1, name="other"), SLIM)]) == {}
        both = [(key("a", 2), SLIM), (key("a", 2, name="other"), SLIM)]
        assert "at most 1 scheduled releases of 'other', got 1 more after 1" in str(ledger.reserve(both)["a"])
        assert "at most 0 scheduled" in str(ledger.reserve([(key("a", 2, name="third"), SLIM)])["a"])
        assert ledger.reserve(both[:1]) == {}
        assert "at most 2 scheduled releases of 'update', got 1 more after 2" in str(
            ledger.reserve([(key("a", 3), SLIM)])["a"]
        )
        assert ledger.reserve([(key("b", 3), SLIM)]) == {}
    with Ledger(path, replace(TERMS, max_releases=dict(reversed(max_releases.items())))) as ledger:
        assert "a" in ledger.reserve([(key("a", 9), SLIM)]), "a new process knows it too"
        for number in range(10, 14):  # what is not noised has no schedule
            assert ledger.reserve([(key("a", number), NON_PRIVATE)]) == {}
    with pytest.raises(ConfigError, match="max_releases"):
        Ledger(path, replace(TERMS, max_releases={"update": 3}))


def test_adaptive_parameters_are_filtered(path: Path) -> None:
    """A fixed-order RDP filter is stricter than composition, and never laxer."""
    plain, adaptive = (
        Ledger(path.with_name(f"{a}.sqlite"), replace(TERMS, budget=4.0, adversaries=(SERVER,), adaptive=a))
        for a in (False, True)
    )
    with plain, adaptive:
        assert plain.rounds_left("a", [STEPS, SLIM], most=50) == 22
        assert 10 <= adaptive.rounds_left("a", [STEPS, SLIM], most=50) <= 18  # 18 by RDP at its best order
        assert adaptive.rounds_left("a", [SLIM], most=500) == plain.rounds_left("a", [SLIM], most=500)


def test_a_corrupted_page_is_refused(path: Path) -> None:
    with Ledger(path, TERMS) as ledger:
        ledger.reserve([(key(f"holder {i}", 1), SLIM) for i in range(200)])
    raw = bytearray(path.read_bytes())
    for start in range(4096, len(raw), 4096):
        raw[start : start + 64] = bytes(64)
    path.write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        Ledger(path, TERMS)


def test_a_clock_that_goes_backwards_changes_no_order_and_no_epsilon(path: Path) -> None:
    times = iter(["2030-01-01", "2020-01-01", "2010-01-01", "2000-01-01"])
    with Ledger(path, TERMS, clock=lambda: next(times)) as ledger:
        for number in (1, 2, 3):
            ledger.reserve([(key("a", number), SLIM)])
        assert [row[2] for row in ledger.rows()] == [1, 2, 3]
        assert ledger.epsilon("a", SERVER) == compose({GaussianDpEvent(10.0): 3}, TERMS.delta)


def test_a_full_disk_releases_nothing(path: Path) -> None:
    wants = [(key(f"holder {i}", 1), SLIM) for i in range(2000)]
    with Ledger(path, TERMS) as ledger:
        assert ledger.reserve([(key("a", 1), SLIM)]) == {}
        (pages,) = ledger._db.rows("PRAGMA page_count")[0]
        ledger._db.rows(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DataError, match="the disk is full"):
            ledger.reserve(wants)
        assert len(ledger.rows()) == 1
        ledger._db.rows("PRAGMA max_page_count = 100000")
        assert ledger.reserve(wants) == {}


def test_near_the_budget_the_exact_figure_decides(path: Path) -> None:
    """The running figure of sampled steps is up to 0.02 % above it."""
    budget = compose({STEPS.server: 5}, TERMS.delta)
    with Ledger(path, replace(TERMS, budget=budget)) as ledger:
        for number in range(5):
            assert ledger.reserve([(key("a", number), STEPS)]) == {}
        assert ledger.epsilon("a", SERVER) > budget, "choose other steps: the running figure is not above"
        assert "a" in ledger.reserve([(key("a", 5), STEPS)])


@pytest.mark.parametrize("charge", [GAUSSIAN, NON_PRIVATE, NO_COST])
def test_releases_of_a_linear_query_are_counted_noised_or_not(path: Path, charge: Charge) -> None:
    """Over rounds, attempts, sessions and restarts. Other holders and names count apart, and a retry once."""
    most = DeclaredQuery(max_releases=3)

    def reserved(ledger: Ledger, *keys: ReleaseKey, asked: DeclaredQuery = most) -> set[str]:
        return set(ledger.reserve([(one, charge) for one in keys], dict.fromkeys(keys, asked)))

    first, attempt = key(), replace(key(), attempt=1)
    with Ledger(path, TERMS) as ledger:
        # on file before anybody declared a number
        assert ledger.reserve([(first, charge)]) == {}
        assert reserved(ledger, first) == set(), "it stands already"
        assert reserved(ledger, attempt) == set()
    with Ledger(path, TERMS) as ledger:
        both = key(number=2), key(number=3)
        assert reserved(ledger, *both) == {"a"}, "a wave counts together"
        assert reserved(ledger, replace(key(), session=bytes(32))) == set()
        (why,) = ledger.reserve([(both[0], charge)], {both[0]: most}).values()
        assert "expected at most 3 releases of 'update' on this ledger, got 1 more after 3" in str(why)
        assert "Declare more (`max_releases`)" in str(why)
        assert reserved(ledger, key("b", 2), key(number=2, name="other")) == set()
        assert reserved(ledger, both[0], asked=DeclaredQuery(max_releases=4)) == set()
        assert reserved(ledger, both[1], asked=DeclaredQuery(max_releases=4)) == {"a"}
        assert reserved(ledger, both[1], asked=DeclaredQuery()) == set(), (
            "what answers no query has no number"
        )


@pytest.mark.parametrize("adversaries", [(OTHERS, SERVER), (SERVER, OTHERS), (KEY_HOLDER, OTHERS, SERVER)])
def test_the_budget_holds_against_every_named_party(path: Path, adversaries: tuple[str, ...]) -> None:
    """The release costs 1.99 against the server and 0.93 against the others, in any order."""
    with Ledger(path, replace(TERMS, budget=1.5, adversaries=adversaries)) as ledger:
        assert set(ledger.reserve([(key(), GAUSSIAN)])) == {"a"}
        assert ledger.rows() == []
        assert ledger.rounds_left("a", [GAUSSIAN]) == 0


def test_charges_that_cost_a_party_alike_add_up(ledger: Ledger) -> None:
    """Two charges that differ against the others alone are two events against the server."""
    ledger.reserve([(key(), GAUSSIAN), (key(number=2), replace(GAUSSIAN, others=NoOpDpEvent()))])
    assert ledger.epsilon("a", SERVER) == compose({GaussianDpEvent(2.0): 2}, 1e-5)


def test_each_attempt_costs_also_after_a_restart(path: Path) -> None:
    """A masked release that was sent before its sum aborted may be opened: nothing is given back."""
    with Ledger(path, TERMS) as ledger:
        for attempt in range(2):
            own = replace(key(), attempt=attempt)
            ledger.reserve([(own, GAUSSIAN)])
            send(ledger, release(own, form="masked", content=b"masked"))
        spent = ledger.epsilon("a", SERVER)
    assert spent == compose({GaussianDpEvent(2.0): 2}, 1e-5)
    with Ledger(path, TERMS) as ledger:
        assert ledger.epsilon("a", SERVER) == spent


def test_a_wave_that_was_rolled_back_counts_for_nobody(ledger: Ledger) -> None:
    ledger.reserve([(key(), GAUSSIAN)])
    assert ledger.epsilon("b", SERVER) == 0
    with pytest.raises(LocalProtocolError):
        ledger.reserve([(key("b"), GAUSSIAN), (key("b"), GAUSSIAN)])
    ledger.book([(key("c"), GAUSSIAN, DeclaredQuery())])  # which no budget looks at
    assert ledger.epsilon("b", SERVER) == 0
    assert ledger.epsilon("c", SERVER) == ledger.epsilon("a", SERVER) > 0


def test_two_stages_of_a_round_are_two_queries(ledger: Ledger) -> None:
    """Two models under one number would use one stream. Two numbers at one stage would pass as a retry."""

    def reserved(stage: int, asked: DeclaredQuery, attempt: int = 0) -> bool:
        own = replace(key(), stage=stage, attempt=attempt)
        return not ledger.reserve([(own, GAUSSIAN)], {own: asked})

    assert reserved(0, DeclaredQuery())
    assert reserved(0, DeclaredQuery(), attempt=1), "a retry"
    assert not reserved(1, DeclaredQuery())
    assert not reserved(0, DeclaredQuery(number=1), attempt=2)
    assert reserved(1, DeclaredQuery(number=1))
    assert len(ledger.rows()) == 3


@pytest.mark.parametrize("initial", [True, False])
def test_declared_queries_end(path: Path, initial: bool) -> None:
    """Initial queries end over all sessions, and extra queries in each. A retry is no new query."""

    def reserved(ledger: Ledger, number: int, session: bytes = SESSION, attempt: int = 0) -> bool:
        own = ReleaseKey("a", session, number, 0, attempt, "update")
        asked = DeclaredQuery(initial=number, most=2) if initial else DeclaredQuery(number=1, most=2)
        return not ledger.reserve([(own, GAUSSIAN)], {own: asked})

    with Ledger(path, TERMS) as ledger:
        assert reserved(ledger, 1)
        assert reserved(ledger, 2)
        assert reserved(ledger, 2, attempt=1)
    with Ledger(path, TERMS) as ledger:
        assert not reserved(ledger, 3)
        assert reserved(ledger, 1, bytes(32)) != initial
        assert len(ledger.rows()) == (3 if initial else 4)


@pytest.mark.parametrize(
    "edit",
    [
        "DELETE FROM releases",
        "DELETE FROM releases WHERE round = 2",
        "UPDATE releases SET charge = (SELECT charge FROM releases WHERE name = 'free')",
        "UPDATE releases SET holder = 'b' WHERE holder = 'a'",
        "UPDATE releases SET reserved = reserved + 10",
        "DELETE FROM head",
    ],
)
def test_rows_that_are_edited_or_gone_are_refused(path: Path, edit: str) -> None:
    """Also without the note: the chain itself ends elsewhere."""
    with Ledger(path, TERMS) as ledger:
        ledger.reserve([(key(number=1), GAUSSIAN), (key(name="free"), NO_COST), (key(number=2), GAUSSIAN)])
    note_of(path).unlink()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(edit)
    with pytest.raises(DataError):
        Ledger(path, TERMS)


def test_heads_of_before_are_on_the_chain_and_those_of_another_ledger_are_not(path: Path) -> None:
    """A process that is killed before it notes its commit leaves an older note. The next one renews it."""
    wave = [(key(), GAUSSIAN), (key("b"), GAUSSIAN)]
    with Ledger(path.with_name("another"), TERMS) as another:
        another.reserve(wave)
        foreign = another.head
    with Ledger(path, TERMS) as ledger:
        older, first = note_of(path).read_bytes(), ledger.head
        ledger.reserve(wave)
        newest, noted = ledger.head, note_of(path).read_bytes()
    for left in (older, b""):
        note_of(path).write_bytes(left)
        with Ledger(path, TERMS) as ledger:
            ledger.require(first)
            ledger.require(newest)
            for other in (foreign, replace(newest, count=3)):
                with pytest.raises(DataError):
                    ledger.require(other)
        assert note_of(path).read_bytes() == noted


def test_a_note_whose_seal_does_not_fit_is_refused(path: Path) -> None:
    Ledger(path, TERMS).close()
    written = note_of(path).read_bytes()
    note_of(path).write_bytes(written[:-1] + bytes([written[-1] ^ 1]))
    with pytest.raises(DataError):
        Ledger(path, TERMS)


def test_a_counter_that_cannot_be_written_is_no_counter(path: Path) -> None:
    """Without it an older copy of the folder would be taken."""
    with pytest.raises(DataError):
        Ledger(path, TERMS, counter=path.with_name("no folder") / "counter")


def test_values_of_a_wave_do_not_use_up_each_others_queries(ledger: Ledger) -> None:
    asked = {
        key(): DeclaredQuery(number=1, most=1, max_releases=1),
        key(number=2, name="other"): DeclaredQuery(number=2, most=2, max_releases=2),
        key(number=3, name="other"): DeclaredQuery(number=2, most=2, max_releases=2),
    }
    assert ledger.reserve([(one, GAUSSIAN) for one in asked], asked) == {}


def test_a_ledger_says_how_far_it_is(ledger: Ledger) -> None:
    ledger.reserve([(key(), GAUSSIAN), (key("b", 3), GAUSSIAN)])
    send(ledger, release(key()))
    assert [ledger.state(own) for own in (key(), key("b", 3), key("c"))] == ["committed", "reserved", None]
    assert [ledger.newest(SESSION, own) for own in (None, "a", "b", "c")] == [3, 1, 3, 0]
    assert ledger.newest(bytes(32)) == 0
    assert ledger.rounds_left("a", [GAUSSIAN], most=7) == 7, "there is no budget"


@pytest.mark.parametrize("counter", [False, True])
def test_an_older_copy_is_refused_by_its_note_and_by_its_counter(path: Path, counter: bool) -> None:
    """A copy of the ledger alone is older than its note. A copy with its note is older than the counter."""
    away = path.with_name("counter") if counter else None
    note = note_of(path)
    with Ledger(path, TERMS, counter=away) as ledger:
        ledger.reserve([(key(), GAUSSIAN)])
    copies = {file: file.read_bytes() for file in ((path, note) if counter else (path,))}
    with Ledger(path, TERMS, counter=away) as ledger:
        ledger.reserve([(key(number=2), GAUSSIAN)])
    for file, content in copies.items():
        file.write_bytes(content)
    with pytest.raises(DataError):
        Ledger(path, TERMS, counter=away)
