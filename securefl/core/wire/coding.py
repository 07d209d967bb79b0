"""Encoder and decoder of messages: strict, bounded and without pickle.

All numbers are little-endian. The numbers of an array begin at a multiple of their size, because unaligned
numbers take twice as long to read. The decoder checks every length against the remaining bytes before it
allocates memory. Nothing may follow the last field. The caller of `decode` limits the bytes of a message, and
the elements of all its tuples together: an empty element takes a few bytes here and hundreds as an object.
Each message has one byte string: decode(encode(m)) = m, and no other bytes decode to m.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from typing import Any, TypeVar, get_origin

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    SecureFLError,
    UnaccountedRelease,
)
from securefl.core.formats import VERSION
from securefl.core.release import Delivered, Permit, Release
from securefl.core.text_safety import is_legible
from securefl.core.wire.kinds import (
    KEYS,
    Header,
    Limit,
    WireType,
    element,
    fields_of,
    is_nested,
    optional,
    scalar,
)

_NAME = b"SFL"
MAGIC = _NAME + bytes([VERSION])
_DTYPES = ("|u1", "<i4", "<i8", "<f4", "<f8")
_FORMS = ("open", "masked", "encrypted", "sparse")
_MAX_DIMENSIONS = 4
_LENGTH = struct.Struct("<I")
T = TypeVar("T")
_Parts = list[bytes | memoryview]
_Write = Callable[[_Parts, Any, Permit | None], None]
_Read = Callable[["_Reader"], Any]

# Encoding ---------------------------------------------------------------------------------------


def encode(header: Header, body: Any, permit: Permit | None = None) -> bytes:
    """Return the bytes of `body`. Raises `UnaccountedRelease` if a release is outside the permit."""
    out: _Parts = [_head(body.__wire__, header)]
    _write_fields(body.__class__, out, body, permit)
    return b"".join(out)


def _head(spec: WireType, header: Header) -> bytes:
    """Return the first bytes of a message of this kind at this place."""
    # By its parts, which have quick hashes: each message that comes is looked up under each kind that is due.
    return _begun(spec.kind, spec.version, header.session, header.round, header.attempt, header.stage)


@lru_cache(maxsize=64)
def _begun(kind: str, version: int, session: bytes, *place: int) -> bytes:
    if len(session) != 32:
        raise LocalProtocolError(f"Expected a session of 32 bytes, got {len(session)}.")
    name = kind.encode("ascii")
    return b"".join([MAGIC, _pack("B", len(name)), name, _pack("H32sIHH", version, session, *place)])


@cache
def _fields(cls: Any, how: Callable[[Any], T]) -> tuple[tuple[str, T], ...]:
    """Return the fields of a class with the writer or reader of each. Cached, one lookup a class."""
    return tuple((name, how(hint)) for name, hint in fields_of(cls))


@lru_cache(maxsize=256)
def _struct(layout: str) -> struct.Struct:
    return struct.Struct("<" + layout)


def _pack(layout: str, *values: Any) -> bytes:
    try:
        return _struct(layout).pack(*values)
    except struct.error as bad:
        raise LocalProtocolError(f"Expected values of layout {layout!r}, got {values}: {bad}.") from None


def _writer(hint: Any) -> _Write:
    """Return the writer of a field of this type."""
    if get_origin(hint) is tuple:
        return _tuple_writer(element(hint))
    if hint in _WRITERS:
        return _WRITERS[hint]
    if hint in KEYS:
        return partial(_write_key, hint)
    if (kind := optional(hint)) is not None:
        return partial(_write_optional, kind)
    if is_nested(hint):
        return partial(_write_fields, hint)
    return partial(_write_declared, scalar(hint))


def _tuple_writer(hint: Any) -> _Write:
    if hint is int:
        return lambda out, value, _: out.append(_pack(f"I{len(value)}q", len(value), *value))
    if hint in KEYS:
        return partial(_write_keys, hint)
    item = _writer(hint)

    def write(out: _Parts, value: Any, permit: Permit | None) -> None:
        out.append(_pack("I", len(value)))
        for one in value:
            item(out, one, permit)

    return write


def _write_fields(kind: Any, out: _Parts, value: Any, permit: Permit | None) -> None:
    if value.__class__ is not kind:  # the fields that a subclass adds would be lost
        raise LocalProtocolError(f"Expected a {kind.__name__}, got a {type(value).__name__}.")
    for name, write in _fields(kind, _writer):
        write(out, getattr(value, name), permit)


def _write_optional(kind: type[Any], out: _Parts, value: Any, permit: Permit | None) -> None:
    out.append(_pack("B", value is not None))
    if value is not None:
        _write_fields(kind, out, value, permit)


def _write_block(out: _Parts, value: bytes, layout: str = "I") -> None:
    out += [_pack(layout, len(value)), value]


def _write_key(kind: type[Any], out: _Parts, value: Any, permit: Permit | None) -> None:
    if not isinstance(value, kind):
        raise LocalProtocolError(f"Expected a {kind.__name__}, got a {type(value).__name__}.")
    _write_block(out, value.raw)


def _write_keys(kind: type[Any], out: _Parts, values: Any, permit: Permit | None) -> None:
    # A large cohort has thousands of keys in one message, so this loop calls no function of an element.
    out.append(_pack("I", len(values)))
    for value in values:
        if not isinstance(value, kind):
            raise LocalProtocolError(f"Expected a {kind.__name__}, got a {type(value).__name__}.")
        out += (_LENGTH.pack(len(value.raw)), value.raw)


def _write_release(out: _Parts, value: Any, permit: Permit | None) -> None:
    if permit is None or not isinstance(value, Release):
        raise UnaccountedRelease(f"Expected a release with its permit, got {value!r}. Use Ledger.send.")
    numbers, sealed = permit.written(value)
    _write_block(out, value.key.name.encode(), "H")
    out.append(_pack("B", _FORMS.index(value.form)))
    _write_array(out, numbers)
    _write_block(out, sealed)


def _write_declared(kind: Any, out: _Parts, value: NDArray[Any], permit: Permit | None) -> None:
    if not issubclass(value.dtype.type, kind):
        raise LocalProtocolError(f"Expected an array of {kind.__name__}, got {value.dtype}.")
    _write_array(out, value)


def _write_array(out: _Parts, value: NDArray[Any]) -> None:
    code = value.dtype.newbyteorder("<").str
    if code not in _DTYPES or value.ndim > _MAX_DIMENSIONS:
        due = f"{', '.join(_DTYPES)} with at most {_MAX_DIMENSIONS} axes"
        raise LocalProtocolError(f"Expected an array of {due}, got {code} with {value.ndim}.")
    out += [_pack("BB", _DTYPES.index(code), value.ndim), _pack(f"{value.ndim}I", *value.shape)]
    # one byte order and layout, so that equal arrays have equal bytes; only the final join copies the data
    raw = np.ascontiguousarray(value, dtype=code).reshape(-1).view(np.uint8).data
    out += [bytes(-sum(map(len, out)) % value.itemsize), raw]


_WRITERS: Mapping[Any, _Write] = {
    int: lambda out, value, _: out.append(_pack("q", value)),
    float: lambda out, value, _: out.append(_pack("d", value)),
    str: lambda out, value, _: _write_block(out, value.encode(), "H"),
    bytes: lambda out, value, _: _write_block(out, value),
    Release: _write_release,
}


# Decoding ---------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, data: bytes, at: int = 0, elements: int = 0) -> None:
        self._data, self._size, self.at = memoryview(data), len(data), at
        self.elements = elements  # the number of tuple elements that may still come

    def count(self) -> int:
        """Read the number of elements of a tuple, and check it before any element is made."""
        (count,) = self.unpack("I")
        if count > self.elements:
            raise _Bad(f"{count} elements came where at most {self.elements} more are expected")
        self.elements -= count
        return int(count)

    def _next(self, count: int) -> int:
        """Advance by `count` bytes, which must be there, and return the position of the first."""
        begin, end = self.at, self.at + count
        if end > self._size:
            raise _Bad(f"expected {count} more bytes, {self.left} are left")
        self.at = end
        return begin

    def take(self, count: int) -> memoryview:
        begin = self._next(count)
        # a view, not a copy: wrong bytes allocate no memory
        return self._data[begin : begin + count]

    def unpack(self, layout: str) -> tuple[Any, ...]:
        made = _struct(layout)
        return made.unpack_from(self._data, self._next(made.size))

    def block(self) -> bytes:
        """Read bytes with their length in front."""
        return bytes(self.take(*self.unpack("I")))

    def blocks(self, count: int) -> list[bytes]:
        """Read as many blocks."""
        return self._alike(count) or [self.block() for _ in range(count)]

    def _alike(self, count: int) -> list[bytes]:
        """Read as many blocks at once if all are as long as the first, as keys are; else read none."""
        if count < 2 or self.left < _LENGTH.size:
            return []
        (size,) = _LENGTH.unpack_from(self._data, self.at)
        end = self.at + count * (_LENGTH.size + size)
        if end > self._size:
            return []
        lengths, found = zip(*_struct(f"I{size}s").iter_unpack(self._data[self.at : end]), strict=True)
        if lengths.count(size) < count:
            return []
        self.at = end
        return list(found)

    def text(self, layout: str) -> str:
        """Read text with its length in front, in this layout."""
        try:
            return str(self.take(*self.unpack(layout)), "utf-8")
        except UnicodeDecodeError:
            raise _Bad("text is not UTF-8") from None

    @property
    def left(self) -> int:
        return self._size - self.at


class _Bad(Exception):
    """The fault in the bytes. It becomes a RemoteProtocolError with the sender's name."""


def peek(data: bytes, sender: str) -> Header:
    """Decode the header alone, so that the caller can tell a late message from a wrong one."""
    return _guarded(lambda: _read_header(_Reader(data))[2], sender)


def begins_as(data: bytes, header: Header, kind: Any) -> bool:
    """Whether these bytes begin as a message of this class at this place. Nothing else is read."""
    spec: WireType = kind.__wire__
    return data.startswith(_head(spec, header))


def decode(data: bytes, header: Header, kinds: Mapping[type[T], Limit], sender: str) -> T:
    """Decode a message at the place `header` whose class is one of `kinds`.

    Raises RemoteProtocolError for any other message.
    """
    return _guarded(lambda: _decode(data, header, kinds), sender)


def _guarded(read: Callable[[], T], sender: str) -> T:
    try:
        return read()
    except _Bad as bad:
        raise RemoteProtocolError(f"Expected a well-formed message: {bad}.", sender=sender) from None


def _read_header(reader: _Reader) -> tuple[str, int, Header]:
    if (mark := bytes(reader.take(len(MAGIC)))) != MAGIC:
        came = f"version {mark[-1]} came" if mark.startswith(_NAME) else "something else came"
        raise _Bad(f"{came} where messages have version {VERSION}. All parties run one release of securefl")
    kind = reader.text("B")
    version, session, *place = reader.unpack("H32sIHH")
    return kind, version, Header(session, *place)


def _decode(data: bytes, header: Header, kinds: Mapping[type[T], Limit]) -> T:
    for cls, most in kinds.items():
        spec: WireType = cls.__wire__  # type: ignore[attr-defined]
        # This check refuses a message that is replayed from another session, round or attempt.
        if not data.startswith(head := _head(spec, header)):
            continue
        if len(data) > most.bytes:
            raise _Bad(f"a {spec.kind!r} has at most {most.bytes} bytes here, this one has {len(data)}")
        reader = _Reader(data, len(head), most.elements)
        body: T = _read_fields(cls, reader)
        if reader.left:
            raise _Bad(f"{reader.left} bytes follow the last field")
        return body
    kind, version, came = _read_header(_Reader(data))
    if came != header:
        raise _Bad(f"it belongs at {came.place()} of its session, not at {header.place()} of this one")
    due = [cls.__wire__.kind for cls in kinds]  # type: ignore[attr-defined]
    raise _Bad(f"a {kind!r} of version {version} came where {due} are due")


def _reader(hint: Any) -> _Read:
    """Return the reader of a field of this type."""
    if get_origin(hint) is tuple:
        return _tuple_reader(element(hint))
    if hint in KEYS:
        return lambda reader: hint(reader.block())
    if (kind := optional(hint)) is not None:
        return partial(_read_optional, kind)
    if is_nested(hint):
        return partial(_read_fields, hint)
    return _READERS.get(hint) or partial(_read_declared, scalar(hint))


def _tuple_reader(hint: Any) -> _Read:
    if hint is int:
        return lambda reader: reader.unpack(f"{reader.count()}q")
    if hint in KEYS:
        return lambda reader: tuple([hint(one) for one in reader.blocks(reader.count())])
    item = _reader(hint)
    return lambda reader: tuple([item(reader) for _ in range(reader.count())])


def _read_fields(kind: Any, reader: _Reader) -> Any:
    values = {name: read(reader) for name, read in _fields(kind, _reader)}
    try:
        return kind(**values)
    except (SecureFLError, TypeError, ValueError, ArithmeticError) as error:
        # The sender chose the values, so it is blamed, and not this party's configuration.
        raise _Bad(f"no {kind.__name__} has these fields: {error}") from None


def _read_optional(kind: Any, reader: _Reader) -> Any:
    (there,) = reader.unpack("B")
    if there > 1:
        raise _Bad(f"expected 0 or 1 in front of a {kind.__name__} that may be missing, {there} came")
    return _read_fields(kind, reader) if there else None


def _read_declared(kind: Any, reader: _Reader) -> NDArray[Any]:
    array = _read_array(reader)
    if not issubclass(array.dtype.type, kind):
        raise _Bad(f"an array of {array.dtype} where another type is declared")
    return array


def _read_release(reader: _Reader) -> Delivered:
    name, (form,), numbers = reader.text("H"), reader.unpack("B"), _read_array(reader)
    none = numbers.dtype == "<i4" and numbers.shape == (0,)  # a sparse release has its numbers in the block
    if form >= len(_FORMS) or (_FORMS[form] == "sparse" and not none):
        raise _Bad(f"a release of form {form} with numbers of {numbers.dtype}, {numbers.shape}")
    if not is_legible(name):  # the rule that `ReleaseKey` holds for our own releases
        raise _Bad(f"a release of the name {name!r}")
    return Delivered(name, _FORMS[form], numbers, reader.block())  # type: ignore[arg-type]


def _read_array(reader: _Reader) -> NDArray[Any]:
    code, dimensions = reader.unpack("BB")
    if code >= len(_DTYPES) or dimensions > _MAX_DIMENSIONS:
        raise _Bad(f"an array of type {code} with {dimensions} dimensions")
    shape, dtype = reader.unpack(f"{dimensions}I"), np.dtype(_DTYPES[code])
    if any(reader.take(-reader.at % dtype.itemsize)):
        raise _Bad("bytes in front of an array that are not 0")
    raw = reader.take(math.prod(shape) * dtype.itemsize)
    try:
        return np.frombuffer(raw, dtype=dtype).reshape(shape)
    except ValueError:  # an empty array whose other dimensions overflow
        raise _Bad(f"an array of shape {shape}") from None


_READERS: Mapping[Any, _Read] = {
    int: lambda reader: reader.unpack("q")[0],
    float: lambda reader: reader.unpack("d")[0],
    str: lambda reader: reader.text("H"),
    bytes: _Reader.block,
    Release: _read_release,
}
