"""The bytes of a message: strict, bounded and without pickle.

All is little-endian. Every length is checked against the bytes that are left before anything is allocated.
Nothing may follow the last field. The caller of `decode` says how many bytes a message may have, and how many
elements all its tuples together: an empty element takes a few bytes here and hundreds as an object. There is
one byte string per message: decode(encode(m)) = m and no other bytes decode to m.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import LocalProtocolError, RemoteProtocolError, UnaccountedRelease
from securefl.core.legible import is_legible
from securefl.core.release import Delivered, Permit, Release
from securefl.core.wire.kinds import KEYS, Header, Limit, Spec, element

MAGIC = b"SFL\x01"
_DTYPES = ("|u1", "<i4", "<i8", "<f4", "<f8")
_FORMS = ("open", "masked", "encrypted")
_MAX_DIMENSIONS = 4
T = TypeVar("T")

# Encoding ---------------------------------------------------------------------------------------


def encode(header: Header, body: Any, permit: Permit | None = None) -> bytes:
    """The bytes of `body`. Raises `UnaccountedRelease` for a release outside the permit."""
    spec: Spec = body.__wire__
    kind = spec.kind.encode("ascii")
    out = [
        MAGIC,
        _pack("B", len(kind)),
        kind,
        _pack("H", spec.version),
        _sized(header.session, 32),
        _pack("IHH", header.round, header.attempt, header.stage),
    ]
    for name, hint in spec.fields:
        _write(out, hint, getattr(body, name), permit)
    return b"".join(out)


def _pack(layout: str, *values: Any) -> bytes:
    try:
        return struct.pack("<" + layout, *values)
    except struct.error as error:
        raise LocalProtocolError(
            f"Expected values of the layout {layout!r}, got {values}: {error}."
        ) from None


def _sized(value: bytes, length: int) -> bytes:
    if len(value) != length:
        raise LocalProtocolError(f"Expected {length} bytes, got {len(value)}.")
    return value


def _write(out: list[bytes], hint: Any, value: Any, permit: Permit | None) -> None:
    if get_origin(hint) is tuple:
        out.append(_pack("I", len(value)))
        for item in value:
            _write(out, element(hint), item, permit)
    elif hint is int:
        out.append(_pack("q", value))
    elif hint is float:
        out.append(_pack("d", value))
    elif hint is str:
        text = value.encode()
        out += [_pack("H", len(text)), text]
    elif hint is bytes:
        out += [_pack("I", len(value)), value]
    elif hint in KEYS:
        if not isinstance(value, hint):
            raise LocalProtocolError(f"Expected a {hint.__name__}, got a {type(value).__name__}.")
        out += [_pack("I", len(value.raw)), value.raw]
    elif hint is Release:
        if permit is None or not isinstance(value, Release):
            raise UnaccountedRelease(f"Expected a release with its permit, got {value!r}. Use Ledger.send.")
        numbers, sealed = permit.contents(value)
        _write(out, str, value.key.name, None)
        out.append(_pack("B", _FORMS.index(value.form)))
        _write_array(out, numbers)
        _write(out, bytes, sealed, None)
    elif get_origin(hint) is np.ndarray:
        if not _declared(hint, value.dtype):
            raise LocalProtocolError(f"Expected an array as {hint}, got {value.dtype}.")
        _write_array(out, value)
    else:
        raise LocalProtocolError(f"Expected a field of a type that has an encoding, got {hint}.")


def _declared(hint: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a field of type `NDArray[scalar]` may hold this dtype."""
    scalar = get_args(get_args(hint)[1])[0]
    return scalar is Any or issubclass(dtype.type, scalar)


def _write_array(out: list[bytes], value: NDArray[Any]) -> None:
    code = value.dtype.newbyteorder("<").str
    if code not in _DTYPES or value.ndim > _MAX_DIMENSIONS:
        raise LocalProtocolError(
            f"Expected an array of {', '.join(_DTYPES)} with at most {_MAX_DIMENSIONS} dimensions, got "
            f"{value.dtype} with {value.ndim}."
        )
    out.append(_pack("BB", _DTYPES.index(code), value.ndim))
    out.append(_pack(f"{value.ndim}I", *value.shape))
    # in one byte order and layout, so that equal arrays have equal bytes on every machine
    out.append(np.ascontiguousarray(value, dtype=code).tobytes())


# Decoding ---------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0
        self._elements = 0

    def allow(self, elements: int) -> None:
        """Allow so many more elements."""
        self._elements = elements

    def count(self) -> int:
        """The number of elements of a tuple, checked before any of them is made."""
        (count,) = self.unpack("I")
        if count > self._elements:
            raise _Bad(f"{count} elements came where at most {self._elements} more are expected")
        self._elements -= count
        return int(count)

    def take(self, count: int) -> memoryview:
        if count > len(self._data) - self._at:
            raise _Bad(f"expected {count} more bytes, {len(self._data) - self._at} are left")
        # a view, not a copy: nothing is allocated for bytes that turn out to be wrong
        piece = self._data[self._at : self._at + count]
        self._at += count
        return piece

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def text(self, length: int) -> str:
        try:
            return bytes(self.take(length)).decode()
        except UnicodeDecodeError:
            raise _Bad("text is not UTF-8") from None

    def left(self) -> int:
        return len(self._data) - self._at


class _Bad(Exception):
    """The fault in the bytes. It becomes a RemoteProtocolError with the sender's name."""


def peek(data: bytes, sender: str) -> Header:
    """The header alone, to tell a late message from a wrong one."""
    return _guarded(lambda: _read_header(_Reader(data))[2], sender)


def decode(data: bytes, header: Header, kinds: Mapping[type[T], Limit], sender: str) -> T:
    """Decode a message that belongs at `header` and is one of `kinds`.

    Raises:
        RemoteProtocolError: the bytes have another place, kind, version, length or content.
    """
    return _guarded(lambda: _decode(data, header, kinds), sender)


def _guarded(read: Callable[[], T], sender: str) -> T:
    try:
        return read()
    except _Bad as bad:
        raise RemoteProtocolError(f"Expected a well-formed message: {bad}.", sender=sender) from None


def _read_header(reader: _Reader) -> tuple[str, int, Header]:
    if bytes(reader.take(4)) != MAGIC:
        raise _Bad("it does not begin with this version's mark")
    kind = reader.text(reader.unpack("B")[0])
    (version,) = reader.unpack("H")
    session = bytes(reader.take(32))
    return kind, version, Header(session, *reader.unpack("IHH"))


def _decode(data: bytes, header: Header, kinds: Mapping[type[T], Limit]) -> T:
    reader = _Reader(data)
    kind, version, came = _read_header(reader)
    # Whole headers are compared: a message replayed from another session, round or attempt is refused here,
    # before any machine sees it.
    if came != header:
        raise _Bad(f"it belongs at {came.place()} of its session, not at {header.place()} of this one")
    for cls, most in kinds.items():
        spec: Spec = cls.__wire__  # type: ignore[attr-defined]
        if (spec.kind, spec.version) != (kind, version):
            continue
        if len(data) > most.bytes:
            raise _Bad(f"a {kind!r} has at most {most.bytes} bytes here, this one has {len(data)}")
        reader.allow(most.elements)
        values = {name: _read(reader, hint) for name, hint in spec.fields}
        if reader.left():
            raise _Bad(f"{reader.left()} bytes follow the last field")
        return cls(**values)
    expected = [cls.__wire__.kind for cls in kinds]  # type: ignore[attr-defined]
    raise _Bad(f"a {kind!r} of version {version} came where {expected} are due")


def _read(reader: _Reader, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        return tuple(_read(reader, element(hint)) for _ in range(reader.count()))
    if hint is int:
        return reader.unpack("q")[0]
    if hint is float:
        return reader.unpack("d")[0]
    if hint is str:
        return reader.text(reader.unpack("H")[0])
    if hint is bytes:
        return bytes(reader.take(reader.unpack("I")[0]))
    if hint in KEYS:
        return hint(bytes(reader.take(reader.unpack("I")[0])))
    if hint is Release:
        return _read_release(reader)
    array = _read_array(reader)
    if not _declared(hint, array.dtype):
        raise _Bad(f"an array of {array.dtype} where another type is declared")
    return array


def _read_release(reader: _Reader) -> Delivered:
    name = _read(reader, str)
    (form,) = reader.unpack("B")
    if form >= len(_FORMS):
        raise _Bad(f"a release of form {form}")
    if not is_legible(name):  # as for the releases that we send
        raise _Bad(f"a release of the name {name!r}")
    return Delivered(name, _FORMS[form], _read_array(reader), _read(reader, bytes))  # type: ignore[arg-type]


def _read_array(reader: _Reader) -> NDArray[Any]:
    code, dimensions = reader.unpack("BB")
    if code >= len(_DTYPES) or dimensions > _MAX_DIMENSIONS:
        raise _Bad(f"an array of type {code} with {dimensions} dimensions")
    shape: Sequence[int] = reader.unpack(f"{dimensions}I")
    dtype = np.dtype(_DTYPES[code])
    raw = reader.take(math.prod(shape) * dtype.itemsize)
    try:
        return np.frombuffer(raw, dtype=dtype).reshape(shape)
    except ValueError:  # an empty array whose other dimensions overflow
        raise _Bad(f"an array of shape {tuple(shape)}") from None
