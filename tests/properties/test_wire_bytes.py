"""One byte string per message: round trips, and every damage is refused or is another message."""

from __future__ import annotations

from itertools import count
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_orders import order

from securefl.accounting.events import NO_COST
from securefl.accounting.ledger import Ledger, Terms
from securefl.core.errors import RemoteProtocolError
from securefl.core.messages import Broadcast, ContributionMessage, OpenReply, OpenRequest, Order
from securefl.core.release import Delivered, Release, ReleaseKey
from securefl.core.text_safety import is_legible
from securefl.core.wire import MAGIC, Header, Limit, decode

KINDS: dict[type[Any], Limit] = dict.fromkeys(
    (Broadcast, Order, ContributionMessage, OpenRequest, OpenReply), Limit(bytes=10**6, elements=100)
)
LEDGER = Ledger(None, Terms(unit="record", adjacency="replace-one", delta=1e-5))
FRESH = count()

headers = st.builds(
    Header,
    session=st.binary(min_size=32, max_size=32),
    round=st.integers(0, 2**32 - 1),
    attempt=st.integers(0, 2**16 - 1),
    stage=st.integers(0, 2**16 - 1),
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
doubles = hnp.arrays(np.float64, shapes)
numbers = st.sampled_from(["|u1", "<i4", "<i8", "<f4", "<f8"]).flatmap(lambda t: hnp.arrays(t, shapes))
words = st.text(max_size=8)
whole = st.integers(-(2**63), 2**63 - 1)
servers = st.one_of(
    st.builds(
        Broadcast,
        model=hnp.arrays(np.float32, st.integers(0, 5)),
        names=st.lists(words, max_size=3).map(tuple),
        arrays=st.lists(doubles, max_size=3).map(tuple),
    ),
    st.builds(
        Order,
        wants=st.lists(words, max_size=3).map(tuple),
        sums=st.lists(words, max_size=3).map(tuple),
        initial=whole,
        number=whole,
        again=whole,
        cohort=st.binary(max_size=40),
        draws=whole,
        whole=whole,
        most=whole,
        records=whole,
    ),
    st.builds(
        OpenRequest,
        items=st.lists(st.binary(max_size=9), max_size=3).map(tuple),
    ),
    st.builds(
        OpenReply,
        items=st.lists(st.binary(max_size=9), max_size=3).map(tuple),
    ),
)
deliveries = st.builds(
    Delivered,
    words.filter(is_legible),
    st.sampled_from(["open", "masked", "encrypted"]),
    numbers,
    st.binary(max_size=9),
)
clients = st.builds(ContributionMessage, releases=st.lists(deliveries, max_size=3).map(tuple))


def released(came: Delivered) -> Release:
    """The release that `came` is the delivery of, reserved under a name never used before."""
    key = ReleaseKey("client-0001", bytes(32), next(FRESH), 0, 0, came.name)
    LEDGER.reserve([(key, NO_COST)])
    return Release(
        key=key, unit="record", form=came.form, charge=NO_COST, _numbers=came.numbers, _sealed=came.sealed
    )


def to_bytes(header: Header, body: Any) -> bytes:
    """The encoding by the one door there is; deliveries become releases again."""
    if isinstance(body, ContributionMessage):
        deliveries: tuple[Any, ...] = body.releases
        body = ContributionMessage(releases=tuple(released(came) for came in deliveries))
    return LEDGER.send([(header, body)])[0]


def same(a: Any, b: Any) -> bool:
    """Equal in every bit, type and shape: NaN equals itself, 0.0 is not -0.0."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    if type(a).__name__ in {*(kind.__name__ for kind in KINDS), "Delivered"}:
        return type(a) is type(b) and all(same(getattr(a, n), getattr(b, n)) for n in vars(a))
    return bool(a == b)


@given(headers, st.one_of(servers, clients))
def test_decode_is_the_inverse_of_encode(header: Header, body: Any) -> None:
    data = to_bytes(header, body)
    got = decode(data, header, KINDS, "peer")
    assert same(got, body)
    assert to_bytes(header, got) == data


SAMPLE = Header(bytes(range(32)), 3, 1, 2)
SAMPLES = [
    Broadcast(
        model=np.arange(3, dtype=np.float32),
        names=("a", "b"),
        arrays=(np.ones((2, 1)), np.zeros((0, 2))),
    ),
    order("update", "losß", sums=("x",), cohort=bytes(32), draws=0, whole=3, most=2),
    OpenRequest(items=(b"one", b"")),
    OpenReply(items=(b"three",)),
    ContributionMessage(
        releases=(
            Delivered("update", "open", np.arange(3, dtype=np.int32), b""),  # type: ignore[arg-type]
            Delivered("loss", "encrypted", np.ones(1), b"sealed"),
        )
    ),
]


def _refused_or_another(original: Any, damaged: bytes) -> bool:
    """True where refused; where decoded, it must be another message with exactly these bytes."""
    try:
        got = decode(damaged, SAMPLE, KINDS, "peer")
    except RemoteProtocolError:
        return True
    assert not same(got, original)
    assert to_bytes(SAMPLE, got) == damaged
    return False


@pytest.mark.parametrize("body", SAMPLES, ids=lambda b: type(b).__name__)
class TestDamage:
    def test_every_truncation_is_refused(self, body: Any) -> None:
        data = to_bytes(SAMPLE, body)
        for length in range(len(data)):
            with pytest.raises(RemoteProtocolError):
                decode(data[:length], SAMPLE, KINDS, "peer")

    def test_every_appended_byte_is_refused(self, body: Any) -> None:
        data = to_bytes(SAMPLE, body)
        for extra in range(256):
            with pytest.raises(RemoteProtocolError, match="follow the last field"):
                decode(data + bytes([extra]), SAMPLE, KINDS, "peer")

    def test_every_flipped_bit_is_refused_or_another_message(self, body: Any) -> None:
        data = to_bytes(SAMPLE, body)
        refused = 0
        for bit in range(8 * len(data)):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            refused += _refused_or_another(body, bytes(damaged))
        head = 4 + 1 + data[4] + 2 + 32 + 8
        assert refused >= 8 * head  # nothing in the header is loose

    @given(data=st.data())
    def test_any_overwriting_is_refused_or_another_message(self, body: Any, data: st.DataObject) -> None:
        raw = bytearray(to_bytes(SAMPLE, body))
        at = data.draw(st.integers(0, len(raw) - 1))
        junk = data.draw(st.binary(min_size=1, max_size=12))
        if raw[at : at + len(junk)] != junk:
            raw[at : at + len(junk)] = junk
            _refused_or_another(body, bytes(raw))


@given(st.binary(max_size=200), st.sampled_from(["broadcast", "order", "contribution", "open-request"]))
def test_junk_after_a_good_header_is_refused_or_canonical(junk: bytes, kind: str) -> None:
    head = MAGIC + bytes([len(kind)]) + kind.encode() + b"\1\0" + SAMPLE.session + b"\3\0\0\0\1\0\2\0"
    _refused_or_another(None, head + junk)


@given(st.binary(max_size=100))
def test_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(junk, SAMPLE, KINDS, "peer")
