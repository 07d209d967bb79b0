"""Numbers that travel concealed, by each way: they equal the clear ones, and junk costs its sender alone."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_he import SURELY
from support.tiny_parties import session

from securefl.accounting.ledger import Ledger, Terms
from securefl.algorithm.clients import (
    Algorithm,
    ClientContext,
    Contribution,
    Device,
    Evaluation,
    Population,
    RoundResult,
    State,
)
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery, PerClient, Schedule, Value, ValueSpec
from securefl.core.errors import LocalProtocolError, RemoteProtocolError
from securefl.core.linear import LinearBounds
from securefl.core.messages import REFUSED, OpenReply
from securefl.core.wire import Header, Limit, decode, encode
from securefl.dp.moments import MeanVariance
from securefl.engine.drive import Packet
from securefl.engine.inprocess import simulated
from securefl.engine.network import Faults, Network
from securefl.engine.observer import Log
from securefl.he import gate
from securefl.he.parameters import STRONG
from securefl.linear.registry import scheme_of
from securefl.linear.scheme import LinearScheme, PublicQueries
from securefl.matching.profiles import Anchor, Bounds, Variant, divergence, features, linear_query

CLIENTS, LENGTH = 4, 3
BOUNDS = Bounds(mean=4.0, variance_low=0.1, variance_high=8.0, weight=8.0)
ANCHOR = Anchor(np.zeros(LENGTH), np.ones(LENGTH))
BASELINE = MeanVariance(np.array([0.1, 0.2, -0.3]), np.array([1.0, 0.7, 2.0]), 10)
PROFILE = ValueSpec(name="profile", reduction="none", reveals="it", schedule=Schedule(max_releases=9))
TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)


def own(client: int) -> MeanVariance:
    return MeanVariance(np.array([client, 0.5, -1.0]) / 2, np.array([1.0 + client, 0.5, 2.0]), 5)


@dataclass(frozen=True)
class Profiles:
    spec: ValueSpec = PROFILE
    variant: Variant = Variant.FULL

    def compute(self, context: ClientContext) -> Value:
        parts = features(own(context.client), ANCHOR, BOUNDS).split(self.variant)
        return Value(hidden=parts.hidden, clear=parts.clear)

    def linear_bounds(self, broadcast: Any, public: Any) -> LinearBounds:
        return BOUNDS.linear(LENGTH, self.variant)


@dataclass(frozen=True)
class Toy:
    contributions: tuple[Contribution, ...] = field(default_factory=lambda: (Profiles(),))

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        return Evaluation(accuracy=0.0, loss=0.0)

    def start(self) -> State:
        return State(np.zeros(1, dtype=np.float32))

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[CohortQuery, Answers, RoundResult]:
        yield CohortQuery(cohort=(), broadcast=state.broadcast)
        return RoundResult(state=state)


WORDS = ("ckks", "pads")
EVERY_WORD = pytest.mark.parametrize("word", WORDS)


def plan_of(word: str, number: int = 1) -> Plan:
    scores: Any = word
    return Plan(delta=1e-5, max_rounds=number, scores=scores, non_private=("profile",))


def scheme(word: str, *, asks: int, clients: int) -> LinearScheme:
    found = scheme_of(word, parameters="strong", asks=asks, clients=clients)
    assert found is not None
    return found


def run(
    word: str,
    tamper: Callable[[str, str, bytes], bytes] | None = None,
    *,
    asks: int = 25,
    clients: int = CLIENTS,
    cohort: tuple[int, ...] = tuple(range(CLIENTS)),
    variant: Variant = Variant.FULL,
    network: Network | None = None,
    number: int = 1,
    profiles: Profiles | None = None,
) -> tuple[Answers, Log, float]:
    algorithm: Algorithm = Toy((profiles or Profiles(variant=variant),))
    plan, way = plan_of(word, number), scheme(word, asks=asks, clients=clients)
    with Ledger(None, TERMS) as ledger:
        engine = simulated(
            plan,
            algorithm.contributions,
            ledger,
            [(np.ones((1, 1)), np.zeros(1))] * CLIENTS,
            rng=lambda number, client, query: np.random.default_rng(0),
            scores=way,
        )
        per_client = PerClient(PROFILE, linear_query(BASELINE, ANCHOR, BOUNDS, variant))
        query = CohortQuery(cohort=cohort, broadcast=np.zeros(1, dtype=np.float32), per_client=(per_client,))
        answers, log = engine.query(query, Header(bytes(32), 1, 0, 0), network or Network(tamper=tamper))
        assert {ledger.epsilon(f"client-{k:04d}", "key-holder") for k in range(CLIENTS)} == {0.0}
        bound = engine.server.error_bound()
        assert bound is not None
    return answers, log, bound


def assert_right(answers: Answers, bound: float, clients: set[int]) -> None:
    numbers = answers.per_client["profile"]
    assert set(numbers) == clients
    for client, number in numbers.items():
        assert abs(number - divergence(own(client), BASELINE)) <= SURELY * bound


@EVERY_WORD
@pytest.mark.parametrize("variant", Variant)
def test_concealed_numbers_are_the_clear_ones_within_the_bound(word: str, variant: Variant) -> None:
    answers, log, bound = run(word, variant=variant)
    assert_right(answers, bound, {0, 1, 2, 3})
    assert not log.traffic.rejected_from
    assert not log.abstained


def test_the_key_holder_of_pads_learns_how_many_answer_and_not_which() -> None:
    """What it is sent names no client, and has the same length whichever they are."""
    lengths = []
    for cohort in ((0, 1), (2, 3), (1, 2, 3)):
        seen: list[bytes] = []

        def watch(sender: str, to: str, data: bytes, seen: list[bytes] = seen) -> bytes:
            if to == "key-holder":
                seen.append(data)
            return data

        run("pads", watch, cohort=cohort)
        assert seen
        assert not any(b"client-" in data for data in seen)
        lengths.append([len(data) for data in seen])
    assert lengths[0] == lengths[1] != lengths[2]


@EVERY_WORD
@pytest.mark.parametrize("cohort", [(), (2,)], ids=["nobody", "one"])
def test_nobody_or_one_client_is_an_exchange_too(word: str, cohort: tuple[int, ...]) -> None:
    answers, log, bound = run(word, cohort=cohort)
    assert_right(answers, bound, set(cohort))
    assert not log.traffic.rejected_from


@EVERY_WORD
def test_nobody_came(word: str) -> None:
    def tamper(sender: str, to: str, data: bytes) -> bytes:
        return b"" if sender.startswith("client") else data

    answers, log, _ = run(word, tamper)
    assert (answers.survivors, answers.per_client) == ((), {"profile": {}})
    assert "key-holder" not in log.traffic.received


def spoil(data: bytes, at: int, piece: bytes) -> bytes:
    return data[:at] + piece + data[at + len(piece) :]


SIGNATURE = 64
"""What stands after a client's ciphertext."""
CIPHERTEXT = gate.residues_size(2, STRONG.primes, STRONG.poly_modulus_degree)
SPOILERS: dict[str, Callable[[bytes, int], bytes]] = {
    "residue not below its prime": lambda data, size: spoil(data, 50_000, b"\xff" * 64),
    "transparent": lambda data, size: data[: -size // 2] + bytes(size // 2),
    "tag": lambda data, size: spoil(data, len(data) - size - 16, b"\x00" * 16),
    "shorter": lambda data, size: data[:-8],
}


@every("junk", SPOILERS.values())
def test_a_junk_ciphertext_costs_its_sender_alone(junk: Callable[[bytes, int], bytes]) -> None:
    def tamper(sender: str, to: str, data: bytes) -> bytes:
        if sender != "client-0002":
            return data
        return junk(data[:-SIGNATURE], CIPHERTEXT) + data[-SIGNATURE:]

    answers, log, bound = run("ckks", tamper)
    assert_right(answers, bound, {0, 1, 3})
    assert set(log.traffic.rejected_from) == {"client-0002"}


SEALED = 16 + 32 + 8 * (2 * LENGTH + 1)
"""Place, fresh key and words: the end of a contribution under pads."""
SPOILT_PADS: dict[str, Callable[[bytes], bytes]] = {
    "of another place": lambda data: spoil(data, len(data) - SEALED, b"\x00" * 16),
    "shorter": lambda data: data[:-8],
    "all-zero key": lambda data: spoil(data, len(data) - SEALED + 16, bytes(32)),
    "key of small order": lambda data: spoil(data, len(data) - SEALED + 16, b"\x01" + bytes(31)),
    "key of order eight": lambda data: spoil(
        data,
        len(data) - SEALED + 16,
        bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    ),
}


@every("junk", SPOILT_PADS.values())
def test_a_spoilt_message_under_pads_costs_its_sender_alone(junk: Callable[[bytes], bytes]) -> None:
    """One weak key in a list would have the key holder refuse all of it."""

    def tamper(sender: str, to: str, data: bytes) -> bytes:
        return junk(data) if sender == "client-0002" else data

    answers, log, bound = run("pads", tamper)
    assert_right(answers, bound, {0, 1, 3})
    assert set(log.traffic.rejected_from) == {"client-0002"}


def test_masked_words_that_were_changed_cost_their_sender_alone() -> None:
    """Nothing tells them from a claim: they give that client some score, or none."""

    def tamper(sender: str, to: str, data: bytes) -> bytes:
        return data[:-9] + bytes([data[-9] ^ 128]) + data[-8:] if sender == "client-0002" else data

    answers, log, bound = run("pads", tamper)
    numbers = {client: number for client, number in answers.per_client["profile"].items() if client != 2}
    assert_right(replace(answers, per_client={"profile": numbers}), bound, {0, 1, 3})
    assert not log.traffic.rejected_from


def test_a_fresh_key_that_two_clients_send_is_listed_for_neither() -> None:
    """Who copied another's message gets no score by it, and nobody else's is lost."""
    seen: list[bytes] = []

    def tamper(sender: str, to: str, data: bytes) -> bytes:
        if sender == "client-0001":
            seen.append(data[-SEALED:])
        return data[:-SEALED] + seen[0] if sender == "client-0002" else data

    answers, log, bound = run("pads", tamper)
    assert_right(answers, bound, {0, 3})
    assert {"client-0001", "client-0002"} == set(log.abstained)
    assert "that another message has too" in log.abstained["client-0002"]


def test_a_copied_message_whose_key_is_written_otherwise_is_no_copy_of_the_score() -> None:
    """A key with its highest bit set is the same point in X25519. Its pad is another one."""
    seen: list[bytes] = []

    def tamper(sender: str, to: str, data: bytes) -> bytes:
        if sender == "client-0001":
            seen.append(data[-SEALED:])
        if sender != "client-0002":
            return data
        own = bytearray(seen[0])
        own[47] |= 128
        return data[:-SEALED] + bytes(own)

    answers, _, bound = run("pads", tamper)
    numbers = dict(answers.per_client["profile"])
    assert abs(numbers.pop(2, np.inf) - numbers[1]) > 1
    assert_right(replace(answers, per_client={"profile": numbers}), bound, {0, 1, 3})


@every("at", ["session", "round", "stage", "attempt"])
def test_pads_of_another_place_are_refused_at_the_gate(at: str) -> None:
    way = scheme("pads", asks=1, clients=CLIENTS)
    here, asks = Header(bytes(32), 3, 1, 2), {"profile": linear_query(BASELINE, ANCHOR, BOUNDS)}
    other = {"session": b"\x01" * 32, "round": 4, "stage": 3, "attempt": 2}[at]
    there = replace(here, **{at: other})  # type: ignore[arg-type]
    parties, quiet = session(range(CLIENTS)), lambda sender, why: None
    key = way.key_holder(parties.key_holder, quiet).machine(PublicQueries.of(asks, CLIENTS), here)[1]
    server, clients = way.server(parties.server), way.clients(parties.directory, lambda names: [])
    asked = server.declare(asks, CLIENTS, here)
    begun = server.begin(asked, key, quiet)
    name = "client-0000"
    good, stale = (clients.conceal(asked, place, key, [name])[name]["profile"] for place in (here, there))
    hidden = features(own(0), ANCHOR, BOUNDS).split(Variant.FULL).hidden
    begun.admit("client-0000", good.conceal(hidden))
    with pytest.raises(RemoteProtocolError, match="another round, session") as refused:
        begun.admit("client-0000", stale.conceal(hidden))
    assert refused.value.sender == "client-0000"


def test_a_well_formed_junk_ciphertext_is_no_score() -> None:
    """Residues in range pass the gate, open to a uniform integer, and are refused as a score.

    One in 16 opens to a number that could be a score; eight tries all do with a probability of 2^-32.
    """
    refused = False
    for at in range(1024, 9 * 1024, 1024):

        def tamper(sender: str, to: str, data: bytes, at: int = at) -> bytes:
            return spoil(data, len(data) - at, bytes(1024)) if sender == "client-0002" else data

        answers, log, bound = run("ckks", tamper)
        numbers = {client: number for client, number in answers.per_client["profile"].items() if client != 2}
        assert_right(replace(answers, per_client={"profile": numbers}), bound, {0, 1, 3})
        assert not log.traffic.rejected_from
        if refused := 2 not in answers.per_client["profile"]:
            assert set(log.abstained) == {"client-0002"}
            break
    assert refused


def test_a_key_holder_at_its_cap_opens_no_more() -> None:
    answers, log, bound = run("ckks", asks=1, clients=2)
    assert_right(answers, bound, {0, 1})
    assert "used up" in log.abstained["server"]
    assert "key-holder" not in {**log.abstained, **log.traffic.rejected_from}, "it answered as it should"


@EVERY_WORD
def test_the_declared_number_of_asks_can_be_opened(word: str) -> None:
    def tamper(sender: str, to: str, data: bytes) -> bytes:
        spoils = sender == "client-0002" and "pads" not in word
        return spoil(data, len(data) - 4096, bytes(1024)) if spoils else data

    answers, log, bound = run(word, tamper, asks=1)
    numbers = {client: number for client, number in answers.per_client["profile"].items() if client != 2}
    assert_right(replace(answers, per_client={"profile": numbers}), bound, {0, 1, 3})
    assert "server" not in log.abstained


@dataclass(frozen=True)
class InTheClear(Profiles):
    """Gives the whole profile as its clear part."""

    def compute(self, context: ClientContext) -> Value:
        value = super().compute(context)
        return Value(clear=np.concatenate([value.hidden, value.clear]))


@EVERY_WORD
def test_a_profile_without_a_hidden_part_does_not_leave_its_client(word: str) -> None:
    sent: list[str] = []

    def watch(sender: str, to: str, data: bytes) -> bytes:
        sent.append(sender)
        return data

    answers, log, _ = run(word, watch, profiles=InTheClear())
    assert answers.per_client == {"profile": {}}
    assert "0 values in the clear, got 7: it is not sent" in log.abstained["client-0000"]
    assert "client-0000" not in sent


SILENT = "It opened no number of 4 clients: it refused without a reason or fell silent."


@EVERY_WORD
def test_a_key_holder_that_refuses_without_a_reason_is_named(word: str) -> None:
    header = Header(bytes(32), 1, 0, 0)

    def refuse(sender: str, to: str, data: bytes) -> bytes:
        if sender != "key-holder":
            return data
        reply = decode(data, header, {OpenReply: Limit(len(data), 99)}, sender)
        return encode(header, replace(reply, items=(REFUSED,) * len(reply.items)))

    answers, log, _ = run(word, refuse)
    assert (answers.survivors, answers.per_client["profile"]) == ((0, 1, 2, 3), {})
    assert log.abstained == {"key-holder": SILENT}


@every("variance", [1e300, -1.0])
def test_a_variance_out_of_bounds_costs_its_sender_alone(variance: float) -> None:
    def tamper(sender: str, to: str, data: bytes) -> bytes:
        at = len(data) - SIGNATURE - CIPHERTEXT - 16 - 4 - 8 * (LENGTH + 1)
        return spoil(data, at, struct.pack("<d", variance)) if sender == "client-0002" else data

    answers, log, bound = run("ckks", tamper, variant=Variant.MEAN_ONLY)
    assert_right(answers, bound, {0, 1, 3})
    assert "inside the declared bounds, got some outside" in log.abstained["client-0002"]


class Losing(Network):
    """Loses the first `times` parcels between two parties."""

    def __init__(self, link: tuple[str, str], times: int) -> None:
        super().__init__()
        self._link, self._times = link, times

    def _post(self, parcels: Sequence[Packet]) -> None:
        for parcel in parcels:
            if (parcel.sender, parcel.to) == self._link and self._times:
                self._times -= 1
            else:
                super()._post([parcel])


@EVERY_WORD
@pytest.mark.parametrize("link", [("server", "key-holder"), ("key-holder", "server")])
def test_one_lost_message_to_or_from_the_key_holder_costs_nothing(word: str, link: tuple[str, str]) -> None:
    answers, _, bound = run(word, network=Losing(link, 1))
    assert_right(answers, bound, {0, 1, 2, 3})
    silent, log, _ = run(word, network=Losing(link, 9))
    assert silent.per_client["profile"] == {}
    assert silent.survivors == (0, 1, 2, 3)
    assert log.abstained == {"key-holder": SILENT}


@EVERY_WORD
@pytest.mark.parametrize("seed", range(3))
def test_a_bad_network_loses_clients_and_spoils_no_number(word: str, seed: int) -> None:
    """Everything comes twice, late and in any order: a turn is answered once."""
    faults = Faults(reorder=True, duplicate=1.0, delay=0.3)
    rng = np.random.default_rng(seed)
    answers, log, bound = run(word, network=Network(faults, rng=rng))
    assert_right(answers, bound, set(answers.per_client["profile"]))
    assert set(answers.per_client["profile"]) in (set(), set(answers.survivors))
    assert not log.traffic.rejected_from


@EVERY_WORD
@pytest.mark.parametrize("what", ["nothing", "flip", "cut"])
def test_a_silent_or_lying_key_holder_costs_the_numbers_only(word: str, what: str) -> None:
    def lie(sender: str, to: str, data: bytes) -> bytes:
        if sender != "key-holder":
            return data
        return {"nothing": b"", "flip": data[:-200] + b"\xff" * 200, "cut": data[:-1]}[what]

    answers, log, _ = run(word, lie)
    assert answers.survivors == (0, 1, 2, 3)
    assert set(answers.per_client["profile"]) < {0, 1, 2, 3}
    assert set(log.traffic.rejected_from) | set(log.abstained) >= {"key-holder"}
    assert all(isinstance(why, str) for why in log.traffic.rejected_from.values())


@EVERY_WORD
def test_numbers_of_any_kind_stay_out_of_the_log(word: str) -> None:
    answers, log, _ = run(word)
    shown: Any = repr(log)
    assert all(f"{number:.6f}" not in shown for number in answers.per_client["profile"].values())


def test_questions_of_two_kinds_are_refused_in_one_exchange() -> None:
    both = {
        "a": linear_query(BASELINE, ANCHOR, BOUNDS),
        "b": linear_query(BASELINE, ANCHOR, BOUNDS, Variant.MEAN_ONLY),
    }
    with pytest.raises(LocalProtocolError, match="one set of bounds"):
        PublicQueries.of(both, CLIENTS)
