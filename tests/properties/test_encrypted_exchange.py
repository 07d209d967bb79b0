"""One ask whose numbers travel encrypted: they equal the clear ones, and junk costs its sender alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from securefl.accounting.ledger import Ledger, Terms
from securefl.engines.host import Log, StudyHost
from securefl.engines.inprocess import InProcess
from securefl.engines.scores import ScoreKeys
from securefl.plan import Plan
from securefl.profiles import Anchor, Bounds, Profile, Variant, divergence, features, query
from securefl.rounds import (
    Algorithm,
    Answers,
    Ask,
    Device,
    Each,
    Evaluation,
    Job,
    Played,
    Roster,
    Sends,
    State,
    Statistic,
    Value,
)
from securefl.wire import Header

CLIENTS, LENGTH = 4, 3
BOUNDS = Bounds(mean=4.0, variance_low=0.1, variance_high=8.0, weight=8.0)
ANCHOR = Anchor(np.zeros(LENGTH), np.ones(LENGTH))
BASELINE = Profile(np.array([0.1, 0.2, -0.3]), np.array([1.0, 0.7, 2.0]), 10)
PROFILE = Sends(name="profile", how="each", reveals="it")
TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)


def own(client: int) -> Profile:
    return Profile(np.array([client, 0.5, -1.0]) / 2, np.array([1.0 + client, 0.5, 2.0]), 5)


@dataclass(frozen=True)
class Profiles:
    sends: Sends = PROFILE

    def compute(self, job: Job) -> Value:
        parts = features(own(job.client), ANCHOR, BOUNDS).split(Variant.FULL)
        return Value(hidden=parts.hidden, clear=parts.clear)


@dataclass(frozen=True)
class Toy:
    statistics: tuple[Statistic, ...] = field(default_factory=lambda: (Profiles(),))

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        return Evaluation(accuracy=0.0, loss=0.0)

    def start(self) -> State:
        return State(np.zeros(1, dtype=np.float32))

    def round(
        self, state: State, roster: Roster, number: int, rng: np.random.Generator
    ) -> Generator[Ask, Answers, Played]:
        yield Ask(cohort=(), broadcast=state.broadcast)
        return Played(state=state)


def run(
    tamper: Callable[[str, str, bytes], bytes] | None = None,
    *,
    scores: int = 100,
    engine: Callable[[StudyHost], InProcess] | None = None,
) -> tuple[Answers, Log, float]:
    algorithm: Algorithm = Toy()
    keys = ScoreKeys.fresh("strong", bounds=BOUNDS, length=LENGTH, variant=Variant.FULL, scores=scores)
    plan = Plan(delta=1e-5, schedule=1, scores="ckks", unprotected=("profile",))
    with Ledger(":memory:", TERMS) as ledger:
        host = StudyHost(
            plan,
            algorithm.statistics,
            ledger,
            [(np.ones((1, 1)), np.zeros(1))] * CLIENTS,
            rng=lambda number, client: np.random.default_rng(0),
            keys=lambda each: keys,
        )
        each = Each(PROFILE, query(BASELINE, ANCHOR, BOUNDS), Variant.FULL, BOUNDS)
        ask = Ask(cohort=tuple(range(CLIENTS)), broadcast=np.zeros(1, dtype=np.float32), each=(each,))
        drives = engine(host) if engine else InProcess(host, tamper=tamper)
        answers, log = host.ask(drives, ask, Header(bytes(32), 1, 0, 0))
        assert {ledger.epsilon(f"client-{k:04d}", "key-holder") for k in range(CLIENTS)} == {0.0}
    return answers, log, keys.terms.error_bound(CLIENTS)


def assert_right(answers: Answers, bound: float, clients: set[int]) -> None:
    numbers = answers.each["profile"]
    assert set(numbers) == clients
    for client, number in numbers.items():
        assert abs(number - divergence(own(client), BASELINE)) <= bound


def test_encrypted_numbers_are_the_clear_ones_within_the_bound() -> None:
    answers, log, bound = run()
    assert_right(answers, bound, {0, 1, 2, 3})
    assert not log.traffic.blamed


def spoil(data: bytes, at: int, piece: bytes) -> bytes:
    return data[:at] + piece + data[at + len(piece) :]


SPOILERS: dict[str, Callable[[bytes], bytes]] = {
    "residue not below its prime": lambda data: spoil(data, 50_000, b"\xff" * 64),
    "transparent": lambda data: data[:-131_072] + bytes(131_072),
    "tag": lambda data: spoil(data, len(data) - 262_160, b"\x00" * 16),
    "shorter": lambda data: data[:-8],
}


@pytest.mark.parametrize("junk", SPOILERS.values(), ids=SPOILERS)
def test_a_junk_ciphertext_costs_its_sender_alone(junk: Callable[[bytes], bytes]) -> None:
    def tamper(sender: str, to: str, data: bytes) -> bytes:
        return junk(data) if sender == "client-0002" else data

    answers, log, bound = run(tamper)
    assert_right(answers, bound, {0, 1, 3})
    assert set(log.traffic.blamed) == {"client-0002"}


def test_a_well_formed_junk_ciphertext_is_no_score() -> None:
    """Residues in range pass the gate, open to a uniform integer, and are refused as a score."""

    def tamper(sender: str, to: str, data: bytes) -> bytes:
        return spoil(data, len(data) - 4096, bytes(1024)) if sender == "client-0002" else data

    answers, log, bound = run(tamper)
    assert_right(answers, bound, {0, 1, 3})
    assert "client-0002" in log.abstained


def test_a_key_holder_at_its_cap_opens_no_more() -> None:
    answers, log, bound = run(scores=2)
    assert_right(answers, bound, {0, 1})
    assert "used up" in log.abstained["server"]
    assert "key-holder" not in {**log.abstained, **log.traffic.blamed}, "it answered as it should"


class Losing(InProcess):
    """Loses the first `times` parcels between two parties."""

    def __init__(self, host: StudyHost, link: tuple[str, str], times: int) -> None:
        super().__init__(host)
        self._link, self._times = link, times

    def _post(self, sender: str, to: str, data: bytes) -> None:
        if (sender, to) == self._link and self._times:
            self._times -= 1
            return
        super()._post(sender, to, data)


@pytest.mark.parametrize("link", [("server", "key-holder"), ("key-holder", "server")])
def test_one_lost_message_to_or_from_the_key_holder_costs_nothing(link: tuple[str, str]) -> None:
    answers, _, bound = run(engine=lambda host: Losing(host, link, 1))
    assert_right(answers, bound, {0, 1, 2, 3})
    silent, _, _ = run(engine=lambda host: Losing(host, link, 9))
    assert silent.each["profile"] == {}
    assert silent.survivors == (0, 1, 2, 3)


def test_a_silent_or_lying_key_holder_costs_the_numbers_only() -> None:
    def drop(sender: str, to: str, data: bytes) -> bytes:
        return b"" if sender == "key-holder" else data

    answers, log, _ = run(drop)
    assert answers.survivors == (0, 1, 2, 3)
    assert answers.each["profile"] == {}
    assert set(log.traffic.blamed) == {"key-holder"}
    assert all(isinstance(why, str) for why in log.traffic.blamed.values())


def test_numbers_of_any_kind_stay_out_of_the_log() -> None:
    answers, log, _ = run()
    shown: Any = repr(log)
    assert all(f"{number:.6f}" not in shown for number in answers.each["profile"].values())
