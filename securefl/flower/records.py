"""Conversions of Flower's records: a model's ArrayRecord to a vector and back, and a frame to a message.

The layout of the vector and the training configuration are a cohort query's task. A frame travels as the
content of a Flower message; this module does not read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, RemoteProtocolError

if TYPE_CHECKING:  # takes seconds to load, and a node does not need it
    from flwr.serverapp.strategy import FedAvg

_FLOATS: Final = ("float16", "float32", "float64")
_COUNTERS: Final = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_LOCAL: Final = ("bool", *_COUNTERS)
_VALUES = (bool, int, float, str)
_LARGEST = 2**16
"""The limit of a task in bytes."""
_MOST_DIMENSIONS = 16
_MOST_LOCAL: Final = 2**24
"""The largest number of integers and booleans in a model, since a task can name them in few bytes."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a record as a vector: name, dtype and shape of each array, in order.

    Arrays of floats are in the vector. Arrays of integers and booleans, such as BatchNorm's counter of
    batches, are not: a mean of them has another type. They are local: each client keeps its own.
    """

    parts: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """The layout of a record. Raises ConfigError if it has no float, or arrays of another dtype."""
        parts = []
        for name, array in arrays.items():
            if array.dtype not in (*_FLOATS, *_LOCAL):
                raise ConfigError(
                    f"Expected arrays of {', '.join(_FLOATS)}, or of integers and booleans that stay local, "
                    f"got {name!r} of {array.dtype}. Keep it out of the ArrayRecord."
                )
            parts.append((name, str(array.dtype), tuple(array.shape)))
        layout = cls(parts=tuple(parts))
        if len(layout.local) == len(parts):
            raise ConfigError(
                f"Expected a model of one array of {', '.join(_FLOATS)} or more, got "
                f"{', '.join(layout.local) or 'an empty ArrayRecord'}."
            )
        if sum(prod(shape) for name, _, shape in parts if name in layout.local) > _MOST_LOCAL:
            raise ConfigError(
                f"Expected at most {_MOST_LOCAL} integers and booleans in a model, got more in "
                f"{', '.join(layout.local)}. Keep them out of the ArrayRecord."
            )
        return layout

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(prod(shape) for _, dtype, shape in self.parts if dtype in _FLOATS)

    @property
    def local(self) -> tuple[str, ...]:
        """The names of the arrays that stay local."""
        return tuple(name for name, dtype, _ in self.parts if dtype in _LOCAL)

    def flat(self, arrays: ArrayRecord) -> NDArray[np.float64]:
        """The record's floats as float64 (d,). Raises ValueError if its layout is another one."""
        own = {name: shape for name, _, shape in self.parts}
        came = {name: tuple(array.shape) for name, array in arrays.items()}
        if own != came:
            raise ValueError(f"Expected arrays {own} as they were sent, got {came}.")
        # In the order of this layout, since an app may build its record in another order.
        floats = [name for name, dtype, _ in self.parts if dtype in _FLOATS]
        return np.concatenate([arrays[name].numpy().astype(np.float64).ravel() for name in floats])

    def record(
        self, values: NDArray[np.float64] | NDArray[np.float32], local: Mapping[str, Array]
    ) -> ArrayRecord:
        """The vector (d,) as a record, with the local arrays of these names in their places."""
        arrays, at = {}, 0
        for name, dtype, shape in self.parts:
            if dtype in _LOCAL:
                arrays[name] = local[name]
                continue
            end = at + prod(shape)
            arrays[name] = Array(np.asarray(values[at:end], dtype=dtype).reshape(shape))
            at = end
        return ArrayRecord(arrays)

    def own(self, arrays: ArrayRecord) -> dict[str, Array]:
        """The record's local arrays, by name. An array of another dtype or shape is left out."""
        found = {name: (dtype, shape) for name, dtype, shape in self.parts if dtype in _LOCAL}
        return {
            name: arrays[name]
            for name, said in found.items()
            if name in arrays and (str(arrays[name].dtype), tuple(arrays[name].shape)) == said
        }


@dataclass(frozen=True)
class Task:
    """The layout of a broadcast and the configuration of its training, the same for the whole cohort.

    Attributes:
        layout: of the broadcast.
        arrays_key, config_key, weight_key: names of the records and of the number of examples.
        config: the strategy's configuration for clients: numbers, texts and lists of them.
        local: the server's initial values of the arrays that stay local, by name.
    """

    layout: Layout
    arrays_key: str
    config_key: str
    weight_key: str
    config: Mapping[str, Any]
    local: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, strategy: FedAvg, arrays: ArrayRecord, config: Mapping[str, Any]) -> Task:
        """The task of a strategy's message with these arrays and this configuration.

        Raises ConfigError for arrays that `Layout.of` refuses.
        """
        layout = Layout.of(arrays)
        keys = (strategy.arrayrecord_key, strategy.configrecord_key, strategy.weighted_by_key)
        return cls(layout, *keys, dict(config), layout.own(arrays))

    def content(self, values: NDArray[np.float32], local: Mapping[str, Array]) -> RecordDict:
        """The content of the message that an app gets: these values (d,), and the arrays that stay local."""
        return RecordDict(
            {
                self.arrays_key: self.layout.record(values, local),
                self.config_key: ConfigRecord(dict(self.config)),
            }
        )

    def encoded(self) -> bytes:
        """Canonical JSON. Raises ConfigError if the configuration is invalid or too large."""
        for name, value in self.config.items():
            if not all(isinstance(one, _VALUES) for one in (value if isinstance(value, list) else [value])):
                raise ConfigError(
                    f"Expected numbers and texts for clients, got {name!r} of another type. Leave bytes out "
                    "of the ConfigRecord: the clients' code is installed on their nodes."
                )
        keys = [self.arrays_key, self.config_key, self.weight_key]
        local = [_short(self.local[name]) for name in self.layout.local]
        text = json.dumps([self.layout.parts, keys, dict(self.config), local], sort_keys=True).encode()
        if len(text) > _LARGEST:
            beside = f" The arrays {', '.join(self.layout.local)} are in it." if local else ""
            raise ConfigError(
                f"Expected layout, configuration and the initial values of integers and booleans up to "
                f"{_LARGEST} bytes in all, got {len(text)}.{beside} Make large masks on the clients."
            )
        return text

    @classmethod
    def decoded(cls, data: bytes) -> Task:
        """Decode a task. Raises RemoteProtocolError for any other bytes."""
        try:
            if len(data) > _LARGEST:
                raise ValueError
            parts, keys, config, local = json.loads(data)
            layout = Layout(parts=tuple(_part(*part) for part in parts))
            arrays_key, config_key, weight_key = map(_word, keys)
            ConfigRecord({**config})  # a TypeError unless it is a table
            return cls(layout, arrays_key, config_key, weight_key, config, _arrays(layout, local))
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise RemoteProtocolError(
                f"Expected a task as securefl writes it, got {len(data)} bytes that are none. Run one "
                "release of securefl at all parties.",
                sender="server",
            ) from None


def _short(array: Array) -> list[int]:
    """An array's values in order, or one of them if all are equal: counters and masks mostly are at first."""
    values: list[int] = [int(one) for one in array.numpy().ravel()]
    return values[:1] if len(set(values)) == 1 else values


def _arrays(layout: Layout, local: list[list[int]]) -> dict[str, Array]:
    """The local arrays of a layout from their values. Raises ValueError or OverflowError for others."""
    said = [(name, dtype, shape) for name, dtype, shape in layout.parts if dtype in _LOCAL]
    if sum(prod(shape) for _, _, shape in said) > _MOST_LOCAL:
        raise ValueError
    arrays = {}
    for (name, dtype, shape), values in zip(said, local, strict=True):
        if any(type(one) is not int for one in values) or len(values) not in {1, prod(shape)}:
            raise ValueError
        own = np.array(values, dtype=dtype)
        arrays[name] = Array(np.array(np.broadcast_to(own, (prod(shape),))).reshape(shape))
    return arrays


def _part(name: object, dtype: object, shape: list[object]) -> tuple[str, str, tuple[int, ...]]:
    numbers = [one for one in shape if isinstance(one, int) and 0 <= one < 2**31]
    if dtype not in (*_FLOATS, *_LOCAL) or len(numbers) < len(shape) or len(shape) > _MOST_DIMENSIONS:
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
            f"Expected one frame of at most {MOST} bytes in a Flower message, got "
            f"{len(content)} records. Run the app that `secure` makes, and one release of securefl.",
            sender=sender,
        )
    return data
