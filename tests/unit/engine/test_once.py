"""What a simulation does once for all parties lets nobody accept what it would refuse alone."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.hidden_plans import hidden
from support.sources import nodes, sources
from support.tiny_orders import order

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.core import signing, wire
from securefl.core.agreement import Directory, Identity, Roster
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import PublicKey, SecretKey, Signature
from securefl.core.messages import Broadcast, OpenRequest, Order
from securefl.core.release import SERVER
from securefl.core.signing import AgreementKey, SigningKey
from securefl.core.wire import Header, Limit, encode
from securefl.engine.drive import Driver
from securefl.engine.inprocess import MOST_MESSAGES, SimulationCache, simulated
from securefl.engine.network import Network

HERE = Header(bytes(range(32)), 3, 1, 2)
ROOM = Limit(10**4, 100)
ORDER = order("update", "loss", sums=("count", "total"), cohort=bytes(32), draws=0, whole=3, most=2)
DATA = encode(HERE, ORDER)
KEY = SigningKey(SecretKey(bytes(range(32))))


# Messages ---------------------------------------------------------------------------------------


def test_the_same_bytes_are_read_once() -> None:
    once = SimulationCache()
    first = once.decode(DATA, HERE, {Order: ROOM}, SERVER)
    assert first == ORDER
    assert once.decode(bytes(bytearray(DATA)), HERE, {Order: ROOM}, SERVER) is first


@every(
    ("header", "kinds"),
    [
        (HERE, {Order: Limit(len(DATA) - 1, 100)}),
        (HERE, {Order: Limit(10**4, 3)}),
        (HERE, {Broadcast: ROOM}),
        (HERE, {}),
        (replace(HERE, attempt=2), {Order: ROOM}),
        (replace(HERE, session=bytes(32)), {Order: ROOM}),
    ],
)
def test_who_expects_something_else_refuses_what_another_accepted(header: Header, kinds: Any) -> None:
    once = SimulationCache()
    once.decode(DATA, HERE, {Order: ROOM}, SERVER)
    with pytest.raises(RemoteProtocolError):
        once.decode(DATA, header, kinds, SERVER)


def test_what_was_refused_is_accepted_by_who_has_room_and_refused_again() -> None:
    once, tight = SimulationCache(), {Order: Limit(10**4, 3)}
    for sender in ("client-0001", "client-0002"):
        with pytest.raises(RemoteProtocolError) as refused:
            once.decode(DATA, HERE, tight, sender)
        assert refused.value.sender == sender
        assert once.decode(DATA, HERE, {Order: ROOM}, SERVER) == ORDER


def test_one_changed_byte_is_another_message() -> None:
    once = SimulationCache()
    once.decode(DATA, HERE, {Order: ROOM}, SERVER)
    for cut in (DATA[:-1], DATA + b"\0"):
        with pytest.raises(RemoteProtocolError):
            once.decode(cut, HERE, {Order: ROOM}, SERVER)


def test_nobody_changes_an_array_under_another() -> None:
    model = np.arange(4, dtype=np.float32)
    data = encode(HERE, Broadcast(model=model, names=("a",), arrays=(np.ones(2),)))
    once = SimulationCache()
    mine, theirs = (once.decode(data, HERE, {Broadcast: ROOM}, SERVER) for _ in range(2))
    arrays: list[Any] = [mine.model, *mine.arrays]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    # numpy lets the owner of an array have it in another shape: so it is no other's array
    mine.model.shape = (2, 2)
    assert theirs.model.shape == (4,)
    assert np.array_equal(theirs.model, model)


def test_the_bytes_of_a_model_are_not_hashed() -> None:
    class Long(bytes):
        def __hash__(self) -> int:
            raise AssertionError("a model's bytes are long")

    data = Long(encode(HERE, Broadcast(model=np.ones(4, np.float32), names=(), arrays=())))
    for kinds in ({Broadcast: ROOM}, {Broadcast: ROOM, Order: ROOM}):
        found: Any = SimulationCache().decode(data, HERE, kinds, SERVER)
        assert len(found.model) == 4


def test_messages_are_forgotten_the_oldest_first() -> None:
    once = SimulationCache()
    for number in range(3 * MOST_MESSAGES):
        request = OpenRequest(items=(number.to_bytes(8, "little"),))
        once.decode(encode(HERE, request), HERE, {OpenRequest: ROOM}, SERVER)
        assert len(once) <= MOST_MESSAGES
    once.forget()
    assert len(once) == 0


# Signatures -------------------------------------------------------------------------------------


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages whose signatures were checked."""
    found: list[bytes] = []
    own = signing.verify

    def counted(public: PublicKey, signature: Signature, message: bytes) -> None:
        found.append(message)
        own(public, signature, message)

    monkeypatch.setattr(signing, "verify", counted)
    return found


def test_a_signature_is_checked_once(checked: list[bytes]) -> None:
    once = SimulationCache()
    for message in (b"one", b"one", b"two", b"one", b"two"):
        once.verify(KEY.public, KEY.sign(message), message)
    assert checked == [b"one", b"two"]


@every("made", ["checked", "signed here"])
def test_after_a_good_signature_a_bad_one_is_refused_and_each_time(made: str) -> None:
    once = SimulationCache()
    own = Identity.generate("client-0000").heard_by(once.signed).signing if made == "signed here" else KEY
    good, other = own.sign(b"yes"), SigningKey.generate()
    once.verify(own.public, good, b"yes")
    flipped = Signature(good.raw[:-1] + bytes([good.raw[-1] ^ 1]))
    bad = [
        (own.public, flipped, b"yes"),
        (own.public, good, b"no"),
        (own.public, other.sign(b"yes"), b"yes"),
        (other.public, good, b"yes"),
        (PublicKey(bytes(32)), good, b"yes"),
        # the same bytes in all, cut elsewhere
        (own.public, Signature(good.raw + b"y"), b"es"),
    ]
    for public, signature, message in 2 * bad:
        with pytest.raises(CryptoError):
            once.verify(public, signature, message)
    once.verify(own.public, good, b"yes")


def test_who_signed_in_this_process_has_done_the_check(checked: list[bytes]) -> None:
    """A run without a liar checks no signature; with one flipped bit it checks that one, and refuses it."""
    engine = masked()
    answers, _ = engine.query(ASK, Header(bytes(32), 1, 0, 0))
    assert answers.survivors == ASK.cohort
    assert checked == []

    def flipped(sender: str, to: str, data: bytes) -> bytes:
        lies = sender == "client-0002" and b"secagg-advertise" in data[:32]
        return data[:-1] + bytes([data[-1] ^ 1]) if lies else data

    answers, log = engine.query(ASK, Header(bytes(32), 2, 0, 0), Network(tamper=flipped))
    assert len(checked) == 1
    assert set(log.traffic.rejected_from) == {"client-0002"}
    assert answers.survivors in ((0, 1, 3), ())


# Agreements -------------------------------------------------------------------------------------

ALICE, BOB, EVE = (AgreementKey(SecretKey(bytes([own]) * 32)) for own in (1, 2, 3))


def test_two_owners_agree_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[bytes] = []
    own = AgreementKey.agree

    def counted(key: AgreementKey, other: PublicKey, purpose: bytes) -> SecretKey:
        worked.append(purpose)
        return own(key, other, purpose)

    monkeypatch.setattr(AgreementKey, "agree", counted)
    once = SimulationCache()
    for purpose in (b"mask", b"channel"):
        one, other = once.agree(ALICE, BOB.public, purpose), once.agree(BOB, ALICE.public, purpose)
        assert one.reveal() == other.reveal() == own(ALICE, BOB.public, purpose).reveal()
    assert worked == [b"mask", b"channel"]
    assert not len(once)  # both sides have theirs


def test_nobody_takes_the_secret_of_two_others() -> None:
    once = SimulationCache()
    once.agree(ALICE, BOB.public, b"mask")
    for own, other, purpose in (
        (EVE, BOB, b"mask"),
        (EVE, ALICE, b"mask"),
        (ALICE, EVE, b"mask"),
        (BOB, ALICE, b"mas"),
    ):
        found = once.agree(own, other.public, purpose)
        assert found.reveal() == own.agree(other.public, purpose).reveal()


def test_a_weak_key_is_refused_each_time() -> None:
    once = SimulationCache()
    for _ in range(2):
        with pytest.raises(CryptoError):
            once.agree(ALICE, PublicKey(bytes(32)), b"mask")
    assert not len(once)


# Who has it -------------------------------------------------------------------------------------


def _importers() -> list[str]:
    return [
        where
        for where, text in sources().items()
        if "SimulationCache" in text
        for node in nodes(text)
        if isinstance(node, ast.ImportFrom) and any(alias.name == "SimulationCache" for alias in node.names)
    ]


def test_the_engine_alone_knows_of_it() -> None:
    assert SimulationCache.__module__ == "securefl.engine.inprocess"
    assert _importers() == []


def test_a_party_on_its_own_reads_and_checks_everything() -> None:
    drive = Driver({}, HERE, worker=None)  # type: ignore[arg-type]
    assert drive.decode is wire.decode
    member = Identity.generate("client-0000").member()
    directory = Directory(bytes(32), Identity.generate(SERVER).member(), None, lambda names: [member])
    assert directory.verify is signing.verify
    assert directory.signed is None
    assert directory.roster(["client-0000"]).verify is signing.verify
    assert Roster((member,)).verify is signing.verify
    assert directory.agree is directory.roster(["client-0000"]).agree is AgreementKey.agree
    assert Roster((member,)).agree is AgreementKey.agree
    # who else checks does not make another roster of it
    assert [field.name for field in fields(Roster) if field.compare] == ["members"]


def masked() -> Any:
    """A simulation of four clients, whose sums are masked."""
    spec = ValueSpec(name="own", reduction="sum", reveals="it")
    clear = Plan(delta=1e-5, max_rounds=3, non_private=("own",), dropout=0.25)
    plan = hidden(clear, 4, min_cohort_size=4)
    return simulated(
        plan,
        [ClientFunction(spec, lambda context: Value(clear=np.ones(3)))],
        Ledger(None, plan.terms()),
        [(np.ones((1, 2)), np.zeros(1))] * 4,
        rng=lambda number, client, query: np.random.default_rng(0),
    )


ASK = CohortQuery(
    cohort=(0, 1, 2, 3),
    broadcast=np.zeros(2, np.float32),
    sums=(Sum(ValueSpec(name="own", reduction="sum", reveals="it"), 3),),
)


def test_nothing_is_kept_from_round_to_round(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    own = SimulationCache.forget

    def watched(self: SimulationCache) -> None:
        kept.append(len(self))
        own(self)
        assert len(self) == 0

    monkeypatch.setattr(SimulationCache, "forget", watched)
    engine = masked()
    for number in (1, 2, 3):
        answers, _ = engine.query(ASK, Header(bytes(32), number, 0, 0))
        assert answers.survivors == ASK.cohort
    first, *others = (kept[at : at + 2] for at in range(0, len(kept), 2))
    assert others == [first, first]
    assert first[1] > 0


def test_it_forgets_after_an_exchange_that_broke_off(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = masked()
    monkeypatch.setattr(Network, "run", lambda self, drives: engine._once.verify(*SIGNED) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.query(ASK, Header(bytes(32), 1, 0, 0))
    assert len(engine._once) == 0


SIGNED = (KEY.public, KEY.sign(b"yes"), b"yes")
