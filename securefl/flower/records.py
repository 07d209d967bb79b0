"""Conversions of Flower's records: a model's ArrayRecord to a vector and back, and a frame to a message.

The layout of the vector and the training configuration are a cohort query's task. A frame travels as the
content of a Flower message; this module does not read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, RemoteProtocolError

_FLOATS: Final = ("float16", "float32", "float64")
_VALUES = (bool, int, float, str)
_LARGEST = 2**16
"""The limit of a task in bytes."""
_MOST_DIMENSIONS = 16


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a record as a vector: name, dtype and shape of each array, in order."""

    parts: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """The layout of a record. Raises ConfigError if it is empty or has arrays other than floats."""
        parts = []
        for name, array in arrays.items():
            if array.dtype not in _FLOATS:
                raise ConfigError(
                    f"Expected arrays of {', '.join(_FLOATS)}, got {name!r} of {array.dtype}, whose mean has "
                    "another type. Keep counters out of the ArrayRecord."
                )
            parts.append((name, str(array.dtype), tuple(array.shape)))
        if not parts:
            raise ConfigError("Expected a model of one array or more, got an empty ArrayRecord.")
        return cls(parts=tuple(parts))

    @property
    def size(self) -> int:
        return sum(prod(shape) for _, _, shape in self.parts)

    def flat(self, arrays: ArrayRecord) -> NDArray[np.float64]:
        """The record as float64 (d,). Raises ValueError if its layout is another one."""
        own = {name: shape for name, _, shape in self.parts}
        came = {name: tuple(array.shape) for name, array in arrays.items()}
        if own != came:
            raise ValueError(f"Expected arrays {own} as they were sent, got {came}.")
        # In the order of this layout, since an app may build its record in another order.
        return np.concatenate([arrays[name].numpy().astype(np.float64).ravel() for name in own])

    def record(self, values: NDArray[np.float64] | NDArray[np.float32]) -> ArrayRecord:
        """The vector (d,) as a record."""
        arrays, at = {}, 0
        for name, dtype, shape in self.parts:
            end = at + prod(shape)
            arrays[name] = Array(np.asarray(values[at:end], dtype=dtype).reshape(shape))
            at = end
        return ArrayRecord(arrays)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The layout of a broadcast and the configuration of its training, the same for the whole cohort.

    Attributes:
        layout: of the broadcast.
        arrays_key, config_key, weight_key: names of the records and of the number of examples.
        config: the strategy's configuration for clients: numbers, texts and lists of them.
    """

    layout: Layout
    arrays_key: str
    config_key: str
    weight_key: str
    config: Mapping[str, Any]

    def encoded(self) -> bytes:
        """Canonical JSON. Raises ConfigError if the configuration is invalid or too large."""
        for name, value in self.config.items():
            if not all(isinstance(one, _VALUES) for one in (value if isinstance(value, list) else [value])):
                raise ConfigError(
                    f"Expected numbers and texts for clients, got {name!r} of another type. Leave bytes out "
                    "of the ConfigRecord: the clients' code is installed on their nodes."
                )
        keys = [self.arrays_key, self.config_key, self.weight_key]
        text = json.dumps([self.layout.parts, keys, dict(self.config)], sort_keys=True).encode()
        if len(text) > _LARGEST:
            raise ConfigError(f"Expected layout and configuration up to {_LARGEST} bytes, got {len(text)}.")
        return text

    @classmethod
    def decoded(cls, data: bytes) -> Task:
        """Decode a task. Raises RemoteProtocolError for any other bytes."""
        try:
            if len(data) > _LARGEST:
                raise ValueError
            parts, keys, config = json.loads(data)
            layout = Layout(parts=tuple(_part(*part) for part in parts))
            arrays_key, config_key, weight_key = map(_word, keys)
            ConfigRecord(config)
        except (ValueError, TypeError, RecursionError):
            raise RemoteProtocolError(
                "Expected a task as securefl writes it, got another.", sender="server"
            ) from None
        return cls(
            layout=layout, arrays_key=arrays_key, config_key=config_key, weight_key=weight_key, config=config
        )


def _part(name: object, dtype: object, shape: list[object]) -> tuple[str, str, tuple[int, ...]]:
    numbers = [one for one in shape if isinstance(one, int) and 0 <= one < 2**31]
    if dtype not in _FLOATS or len(numbers) < len(shape) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError
    return _word(name), str(dtype), tuple(numbers)


def _word(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError
    return name


MOST: Final = 2**30
"""The largest frame in bytes. A Flower message must have less than 2 GiB."""
_RECORD, _FRAME, _KIND = "securefl", "frame", "securefl-frame"
# Above this size, Flower's arrays, which are sent in chunks, are faster than its configuration values.
_LARGE: Final = 100_000


def wrapped(frame: bytes) -> RecordDict:
    """The content of a message with this frame. Raises ValueError for a frame above MOST bytes."""
    if len(frame) > MOST:
        raise ValueError(f"Expected a frame of at most {MOST} bytes, got {len(frame)}. Send smaller values.")
    if len(frame) < _LARGE:
        return RecordDict({_RECORD: ConfigRecord({_FRAME: frame})})
    array = Array(dtype="uint8", shape=(len(frame),), stype=_KIND, data=frame)
    return RecordDict({_RECORD: ArrayRecord({_FRAME: array})})


def unwrapped(content: RecordDict, *, sender: str) -> bytes:
    """The frame in the content of a message. Raises RemoteProtocolError for any other content."""
    record = content.get(_RECORD)
    found: object = None
    if len(content) == 1 and isinstance(record, ConfigRecord | ArrayRecord) and len(record) == 1:
        found = record.get(_FRAME)
    # The array's stated shape and type are ignored: its bytes are the frame.
    data = found.data if isinstance(found, Array) else found
    if not isinstance(data, bytes) or len(data) > MOST:
        raise RemoteProtocolError(
            f"Expected one frame of at most {MOST} bytes in a Flower message, got other content.",
            sender=sender,
        )
    return data
