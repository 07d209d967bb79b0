"""The encoding: what a client may send at all, where a message belongs, and who may encode a release."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass, replace
from types import GenericAlias
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.every import every
from support.tiny_orders import order

from securefl.accounting.events import NON_PRIVATE
from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError, UnaccountedRelease
from securefl.core.keys import PublicKey, SecretKey, Share, Signature
from securefl.core.messages import Broadcast, ContributionMessage, OpenReply, OpenRequest, Order
from securefl.core.release import Delivered, Release, ReleaseKey
from securefl.core.wire import MAGIC, Header, Limit, decode, encode, message, peek
from securefl.core.wire.coding import _Bad, _Reader
from securefl.secagg.messages import Survivors

HERE = Header(bytes(range(32)), 3, 1, 2)
ORDER = order("update", "loss", sums=("count",), cohort=bytes(32), draws=0, whole=3, most=2)
MANY = Limit(bytes=10**6, elements=10)


@message("keys", version=1, sender="client")
@dataclass(frozen=True)
class Keys:
    public: PublicKey
    shares: tuple[Share, ...]
    signature: Signature


@message("order", version=5, sender="server")
@dataclass(frozen=True, kw_only=True)
class NewerOrder:
    wants: tuple[str, ...]
    weight: float


def made(name: str, *, frozen: bool = True, **hints: Any) -> Any:
    """A dataclass of these fields."""
    return dataclass(frozen=frozen)(type(name, (), {"__annotations__": hints}))


def release() -> Release:
    key = ReleaseKey("client-0001", HERE.session, 3, 2, 1, "loss")
    return Release(key=key, unit="record", form="open", charge=NON_PRIVATE, _numbers=np.ones(1))


# What a client may send -------------------------------------------------------------------------


@every(
    "hint",
    [
        np.ndarray,
        NDArray[np.float32],
        int,
        float,
        str,
        bytes,
        bool,
        object,
        Any,
        Delivered,
        SecretKey,
        Release | None,
        tuple,
        list[Release],
        tuple[float, ...],
        tuple[Release, int],
        tuple[Release, float, bytes],
        tuple[tuple[Release, ...], ...],
        dict[str, Release],
    ],
)
def test_a_client_message_with_a_bare_field_is_not_even_defined(hint: Any) -> None:
    body = made("Leak", value=hint)
    with pytest.raises(LocalProtocolError, match=r"Leak\.value"):
        message("leak", version=1, sender="client")(body)


def test_a_bare_field_is_not_inherited_either() -> None:
    @dataclass(frozen=True)
    class Parent:
        count: int

    with pytest.raises(LocalProtocolError, match="count"):

        @message("leak", version=1, sender="client")
        @dataclass(frozen=True)
        class Child(Parent):
            releases: tuple[Release, ...]


@every("hint", [tuple[int, float], tuple[()], tuple[int]])
def test_only_tuples_of_one_type_are_messages(hint: Any) -> None:
    body = made("Odd", value=hint)
    with pytest.raises(LocalProtocolError, match=r"tuple\[T, ...\]"):
        message("odd", version=1, sender="server")(body)


def test_a_release_is_not_encoded_without_the_ledger() -> None:
    with pytest.raises(UnaccountedRelease, match=r"Use Ledger\.send"):
        encode(HERE, ContributionMessage(releases=(release(),)))


@every("fake", [np.ones(3), 7, 0.5, b"x", "x", Delivered("x", "open", np.ones(1), b"")])
def test_what_only_stands_where_a_release_should_is_not_encoded(fake: Any) -> None:
    with pytest.raises(UnaccountedRelease):
        encode(HERE, ContributionMessage(releases=(fake,)))


@every(
    "wrong",
    [
        Keys(Share(b"a"), (), Signature(b"")),  # type: ignore[arg-type]
        Keys(np.ones(3), (), Signature(b"")),  # type: ignore[arg-type]
        Keys(PublicKey(b"a"), (SecretKey(b"s"),), Signature(b"")),  # type: ignore[arg-type]
        Keys(PublicKey(b"a"), (release(),), Signature(b"")),  # type: ignore[arg-type]
    ],
)
def test_another_type_in_a_field_for_keys_is_not_encoded(wrong: Keys) -> None:
    with pytest.raises(LocalProtocolError, match="Expected a"):
        encode(HERE, wrong)


def test_keys_shares_and_signatures_round_trip() -> None:
    keys = Keys(PublicKey(b"pub"), (Share(b"one"), Share(b"")), Signature(b"sig"))
    assert decode(encode(HERE, keys), HERE, {Keys: MANY}, "client-0001") == keys


@every(
    ("header", "body"),
    [
        (Header(bytes(31), 0, 0, 0), ORDER),
        (Header(bytes(32), 2**32, 0, 0), ORDER),
        (Header(bytes(32), 0, -1, 0), ORDER),
        (Header(bytes(32), 0, 0, 2**16), ORDER),
        (HERE, order("x" * 2**16)),
        (HERE, Broadcast(model=np.ones(2), names=(), arrays=())),  # type: ignore[arg-type]
        (HERE, Broadcast(model=np.ones((1,) * 5, np.float32), names=(), arrays=())),
        (HERE, Broadcast(model=np.array(["a"]), names=(), arrays=())),  # type: ignore[arg-type]
    ],
)
def test_what_has_no_encoding_is_our_own_mistake(header: Header, body: Any) -> None:
    with pytest.raises(LocalProtocolError):
        encode(header, body)


# Where a message belongs --------------------------------------------------------------------------


@every(
    "there",
    [
        replace(HERE, session=bytes(32)),
        replace(HERE, session=HERE.session[:-1] + b"\0"),
        replace(HERE, round=4),
        replace(HERE, round=2),
        replace(HERE, attempt=0),
        replace(HERE, stage=3),
    ],
)
def test_a_message_is_good_in_its_own_place_alone(there: Header) -> None:
    data = encode(HERE, ORDER)
    assert decode(data, HERE, {Order: MANY}, "server") == ORDER
    with pytest.raises(RemoteProtocolError, match="it belongs at") as refused:
        decode(data, there, {Order: MANY}, "server")
    assert refused.value.sender == "server"


def test_a_kind_or_version_that_is_not_due_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="'order' of version 1 came"):
        decode(encode(HERE, ORDER), HERE, {Broadcast: MANY, OpenReply: MANY}, "server")
    with pytest.raises(RemoteProtocolError, match="'order' of version 5 came"):
        decode(encode(HERE, NewerOrder(wants=(), weight=1.0)), HERE, {Order: MANY}, "server")
    with pytest.raises(RemoteProtocolError, match="version 2 came where messages have version 8"):
        decode(b"SFL\x02" + encode(HERE, ORDER)[4:], HERE, {Order: MANY}, "server")


def test_a_message_over_its_byte_cap_is_refused() -> None:
    data = encode(HERE, ORDER)
    assert decode(data, HERE, {Order: Limit(len(data), 10)}, "server") == ORDER
    with pytest.raises(RemoteProtocolError, match="at most"):
        decode(data, HERE, {Order: Limit(len(data) - 1, 10)}, "server")


def test_peek_reads_the_place_and_nothing_else() -> None:
    assert peek(encode(HERE, ORDER), "server") == HERE
    assert peek(encode(HERE, ORDER)[:60] + b"junk", "server") == HERE
    with pytest.raises(RemoteProtocolError):
        peek(b"", "server")


# Declared lengths ---------------------------------------------------------------------------------

HUGE = b"\xff\xff\xff\xff"


def _head(kind: bytes) -> bytes:
    spec: Any = next(
        one.__wire__  # type: ignore[attr-defined]
        for one in (Order, Broadcast, ContributionMessage, OpenRequest)
        if one.__wire__.kind.encode() == kind  # type: ignore[attr-defined]
    )
    version = spec.version.to_bytes(2, "little")
    return MAGIC + bytes([len(kind)]) + kind + version + HERE.session + b"\3\0\0\0\1\0\2\0"


@every(
    ("kind", "data"),
    [
        (OpenRequest, _head(b"open-request") + bytes(8) + HUGE),
        (OpenRequest, _head(b"open-request") + bytes(8) + b"\1\0\0\0" + HUGE),
        (Order, _head(b"order") + HUGE + bytes(8)),
        (Order, _head(b"order") + b"\1\0\0\0\xff\xff"),
        (Broadcast, _head(b"broadcast") + b"\3\1" + HUGE + bytes(4)),
        (Broadcast, _head(b"broadcast") + b"\3\4" + HUGE * 4 + bytes(16)),
        (Broadcast, _head(b"broadcast") + b"\3\4" + bytes(4) + HUGE * 3 + bytes(16)),
        (Broadcast, _head(b"broadcast") + b"\3\xff" + HUGE * 255),
        (ContributionMessage, _head(b"contribution") + b"\1\0\0\0\xff\xff"),
        (ContributionMessage, _head(b"contribution") + b"\1\0\0\0\1\0x\0\1\1" + HUGE),
        (ContributionMessage, _head(b"contribution") + b"\1\0\0\0\1\0x\0\1\1" + bytes(4) + HUGE),
    ],
)
def test_a_huge_declared_length_is_refused_before_anything_is_allocated(kind: Any, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):  # once before measuring: the first error loads modules
        decode(data, HERE, {kind: MANY}, "peer")
    assert_refused_in_little_memory(kind, data)


def assert_refused_in_little_memory(kind: Any, data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decode(data, HERE, {kind: MANY}, "peer")
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()


@every(
    ("kind", "fields", "element"),
    [
        (Broadcast, b"\3\1" + bytes(4) + bytes(2) + bytes(4), b"\4\1" + bytes(4) + bytes(2)),
        (Broadcast, b"\3\1" + bytes(4) + bytes(2), b"\0\0"),
        (Order, b"", b"\0\0"),
        (Survivors, b"", bytes(8)),
        (OpenRequest, b"", bytes(4)),
        (ContributionMessage, b"", b"\0\0\0\4\1" + bytes(4) + bytes(4)),
        (Keys, bytes(4), bytes(4)),
    ],
)
def test_more_elements_than_expected_are_refused_before_one_is_made(
    kind: Any, fields: bytes, element: bytes
) -> None:
    """What fills a megabyte would be tens of megabytes of objects."""
    spec = kind.__wire__
    head = MAGIC + bytes([len(spec.kind)]) + spec.kind.encode() + spec.version.to_bytes(2, "little")
    place = HERE.session + b"\3\0\0\0\1\0\2\0"
    count = (MANY.bytes - 1000) // len(element)
    data = head + place + fields + count.to_bytes(4, "little") + element * count
    assert len(data) < MANY.bytes
    for elements in (MANY.elements, count - 1):
        with pytest.raises(RemoteProtocolError, match=f"at most {elements} more") as refused:
            decode(data, HERE, {kind: replace(MANY, elements=elements)}, "peer")
        assert refused.value.sender == "peer"
    assert_refused_in_little_memory(kind, data)


def test_the_elements_of_all_tuples_of_a_message_count_together() -> None:
    data = encode(HERE, ORDER)
    held = sum(map(len, (ORDER.wants, ORDER.sums)))
    assert decode(data, HERE, {Order: Limit(len(data), held)}, "server") == ORDER
    with pytest.raises(RemoteProtocolError, match=r"1 elements .* at most 0"):
        decode(data, HERE, {Order: Limit(len(data), held - 1)}, "server")


def test_numbers_begin_at_a_multiple_of_their_size() -> None:
    arrays = (np.ones(3), np.zeros(0), np.arange(2.0))
    for names in (("a", "b", "c"), ("ab", "c", "d")):
        data = encode(HERE, Broadcast(model=np.ones(3, np.float32), names=names, arrays=arrays))
        got = decode(data, HERE, {Broadcast: MANY}, "server")
        assert got.model.flags.aligned
        assert all(array.flags.aligned for array in got.arrays)
        assert all(map(np.array_equal, got.arrays, arrays))


def test_what_stands_in_front_of_numbers_is_zero() -> None:
    data = encode(HERE, Broadcast(model=np.ones(3, np.float32), names=(), arrays=()))
    at = data.index(np.ones(3, "<f4").tobytes()) - 1
    assert data[at - 1 : at + 1] == bytes(2)
    with pytest.raises(RemoteProtocolError, match="not 0"):
        decode(data[:at] + b"\1" + data[at + 1 :], HERE, {Broadcast: MANY}, "server")


class _Alias:
    """It behaves as `type NDArray[Scalar] = ...` does, which numpy has since 2.5 and Python 3.11 has not."""

    __value__ = np.ndarray[tuple[Any, ...], np.dtype[TypeVar("Scalar", bound=np.generic)]]
    __class_getitem__ = classmethod(GenericAlias)


@every("array", [NDArray, _Alias])
def test_arrays_are_declared_by_any_numpy(array: Any) -> None:
    """`NDArray[...]` is np.ndarray[...] up to numpy 2.4, and an alias of it from 2.5 on."""
    hints = {"one": array[np.float32], "some": tuple[array[np.floating], ...], "any": array[Any]}
    body: Any = message("arrays", version=1, sender="server")(made("Arrays", **hints))
    ours = body(np.ones(2, np.float32), (np.zeros(1, np.float32), np.ones((1, 2))), np.arange(3))
    theirs: Any = decode(encode(HERE, ours), HERE, {body: MANY}, "the server")
    np.testing.assert_equal(vars(theirs), vars(ours))
    for wrong in (replace(ours, one=np.ones(2)), replace(ours, some=(np.arange(3),))):
        with pytest.raises(LocalProtocolError):
            encode(HERE, wrong)


@every("hint", [list[np.float32], np.ndarray, bool, SecretKey, Identity, int | None, tuple[bool, ...]])
def test_a_field_of_a_type_without_an_encoding_is_not_even_defined(hint: Any) -> None:
    with pytest.raises(LocalProtocolError, match="has an encoding"):
        message("odd", version=1, sender="server")(made("Odd", value=hint))


def test_decoded_arrays_do_not_write_into_the_message() -> None:
    data = encode(HERE, Broadcast(model=np.ones(3, np.float32), names=(), arrays=()))
    got = decode(data, HERE, {Broadcast: MANY}, "server")
    with pytest.raises(ValueError, match="read-only"):
        got.model[0] = 2.0


# Messages inside messages --------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    count: int
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.count != len(self.values):
            raise ConfigError(f"Expected {self.count} values, got {len(self.values)}.")


@message("outer", sender="server")
@dataclass(frozen=True)
class Outer:
    word: str
    run: Run
    more: tuple[Run, ...]
    last: Order | None


@message("plain", sender="server")  # a name as long: numbers begin at a multiple of their size
@dataclass(frozen=True)
class Flat:
    """The same fields as those of an `Outer` with one run more, one after the other."""

    word: str
    count: int
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Endless:
    inner: tuple[Endless, ...]


OUTER = Outer("odd", Run(2, np.ones(2)), (Run(0, np.zeros(0)), Run(1, np.ones(1))), ORDER)


def body_of(data: bytes, kind: bytes) -> bytes:
    return data[len(MAGIC) + 1 + len(kind) + 2 + 32 + 8 :]


@every("outer", [OUTER, replace(OUTER, more=(), last=None)])
def test_a_message_stands_in_another_as_its_fields(outer: Outer) -> None:
    data = encode(HERE, outer)
    begin = body_of(encode(HERE, Flat("odd", 2, np.ones(2))), b"plain")
    assert body_of(data, b"outer").startswith(begin)
    assert data.endswith(b"\1" + body_of(encode(HERE, ORDER), b"order") if outer.last else b"\0")
    got = decode(data, HERE, {Outer: MANY}, "server")
    np.testing.assert_equal(encode(HERE, got), data)
    assert (got.last, len(got.more)) == (outer.last, len(outer.more))


def test_bytes_that_are_cut_or_changed_anywhere_are_refused_or_another_message() -> None:
    data = encode(HERE, OUTER)
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode(data[:end], HERE, {Outer: MANY}, "server")
    for place in range(len(data)):
        for byte in (0, 1, 2, 255):
            changed = data[:place] + bytes([byte]) + data[place + 1 :]
            with suppress(RemoteProtocolError):
                assert encode(HERE, decode(changed, HERE, {Outer: MANY}, "server")) == changed


def test_the_elements_of_nested_tuples_count_with_the_others() -> None:
    data, held = encode(HERE, OUTER), 2 + len(ORDER.wants) + len(ORDER.sums)
    assert decode(data, HERE, {Outer: Limit(len(data), held)}, "server").last == ORDER
    with pytest.raises(RemoteProtocolError, match="at most 0 more"):
        decode(data, HERE, {Outer: Limit(len(data), held - 1)}, "server")


def test_values_that_the_inner_class_refuses_are_the_sender_s_fault() -> None:
    data, bad = encode(HERE, OUTER), Run(2, np.ones(2))
    object.__setattr__(bad, "count", 3)
    assert decode(data, HERE, {Outer: MANY}, "server").run.count == 2
    with pytest.raises(RemoteProtocolError, match="Expected 3 values, got 2") as refused:
        decode(encode(HERE, replace(OUTER, run=bad)), HERE, {Outer: MANY}, "server")
    assert refused.value.sender == "server"


def test_what_is_no_message_of_the_field_is_not_encoded() -> None:
    class Wider(Run):
        pass

    for wrong in (Wider(0, np.zeros(0)), OUTER, None, 3):
        with pytest.raises(LocalProtocolError, match="Expected a Run"):
            encode(HERE, replace(OUTER, run=wrong))  # type: ignore[arg-type]


def nested(depth: int, inner: Any = int) -> Any:
    for _ in range(depth):
        inner = made("Deep", value=inner)
    return inner


@every("hint", [nested(5), Endless, GenericAlias(tuple, (nested(5), ...))])
def test_a_message_nested_too_deep_is_not_even_defined(hint: Any) -> None:
    with pytest.raises(LocalProtocolError, match="nested too deep"):
        message("deep", sender="server")(made("Outermost", value=hint))
    assert message("deep", sender="server")(made("Outermost", value=nested(4)))


@every(
    ("sender", "inner"),
    [
        ("client", made("Inner", key=PublicKey, count=int)),
        ("client", made("Inner", values=NDArray[np.float64])),
        ("client", made("Inner", release=Release)),
        ("server", made("Inner", releases=tuple[Release, ...])),
        ("server", made("Inner", frozen=False, word=str)),
        ("server", made("Inner", secret=SecretKey)),
        ("server", made("Inner", pair=tuple[int, float])),
    ],
)
@every("around", [lambda one: one, lambda one: tuple[one, ...], lambda one: one | None])
def test_what_a_message_may_not_have_it_may_not_have_inside(around: Any, sender: Any, inner: Any) -> None:
    with pytest.raises(LocalProtocolError):
        message("leak", sender=sender)(made("Leak", value=around(inner)))


def test_a_client_may_send_keys_in_a_message_inside() -> None:
    inner = made("Inner", key=PublicKey, shares=tuple[Share, ...])
    body = message("pairs", sender="client")(made("Pairs", pairs=tuple[inner, ...]))  # type: ignore[valid-type]
    ours = body((inner(PublicKey(b"a"), (Share(b"b"),)), inner(PublicKey(b"c"), ())))
    assert decode(encode(HERE, ours), HERE, {body: MANY}, "client-0001") == ours


LENGTHS = st.lists(st.integers(0, 40), max_size=6)
ALIKE = st.builds(lambda size, count: [size] * count, st.integers(0, 40), st.integers(0, 6))


@given(LENGTHS | ALIKE, st.integers(-9, 9))
def test_blocks_of_one_length_are_read_as_any_others(lengths: list[int], cut: int) -> None:
    """Keys have one length and are read at once. What is cut or follows is found as it is one by one."""
    data = b"".join(struct.pack("<I", size) + bytes([size]) * size for size in lengths)
    data = data[:cut] if cut < 0 else data + bytes(cut)
    ends = []
    for read in (
        lambda reader: reader.blocks(len(lengths)),
        lambda reader: [reader.block() for _ in lengths],
    ):
        reader = _Reader(data)
        try:
            ends.append((read(reader), reader.at))
        except _Bad as bad:
            ends.append((str(bad), 0))
    assert ends[0] == ends[1]
