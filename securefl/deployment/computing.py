"""Outside computation: a party has training or evaluation done by the relay that brought it the request.

    relay                                 party
      |------ request -------------------->|
      |<----- Compute ---------------------|   the broadcast, and the public task of the order
      |------ Computed ------------------->|   the model, its metrics and the number of examples
      |<----- reply -----------------------|   protected: clipped, noised, hidden, charged

Both use the same connection. The party charges its ledger before it sends `Compute`. The result comes from
foreign code, and is checked before it is protected.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError, RemoteProtocolError
from securefl.deployment.frames import is_of, other, packed, parts_of

Kind = Literal["train", "evaluate"]
CohortQuery = Callable[[bytes], bytes]
"""Gives the relay that brought the request a frame, and returns its answer."""
_COMPUTE, _COMPUTED = b"C", b"V"
_PLACE = struct.Struct("<I")
_COUNT = struct.Struct("<d")


@dataclass(frozen=True, kw_only=True)
class Compute:
    """A party's order to train or evaluate.

    Attributes:
        kind: whether to train from the broadcast, or to evaluate it.
        round: of the session, from 1.
        metrics: names of the metrics to return.
        task: the server's text on the broadcast's layout and on training, the same for the whole cohort.
        broadcast: float32 (d,).
    """

    kind: Kind
    round: int
    metrics: tuple[str, ...]
    task: bytes = field(repr=False)
    broadcast: NDArray[np.float32] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Computed:
    """The result: trained values float64 (d,), or none after an evaluation; metrics float64 (m,)."""

    values: NDArray[np.float64] = field(repr=False)
    metrics: NDArray[np.float64] = field(repr=False)
    examples: float = field(repr=False)


def pack_compute(compute: Compute) -> bytes:
    """Encode an order to compute."""
    names = [name.encode() for name in compute.metrics]
    values = np.ascontiguousarray(compute.broadcast, "<f4").tobytes()
    head = [compute.kind.encode(), _PLACE.pack(compute.round), compute.task, values]
    return packed(_COMPUTE, [*head, *names])


def is_compute(data: bytes) -> bool:
    """Whether a frame's head has the kind of an order to compute."""
    return is_of(_COMPUTE, data)


def unpack_compute(data: bytes, *, sender: str) -> Compute:
    """Decode an order to compute. Raises RemoteProtocolError for any other bytes."""
    parts = parts_of(_COMPUTE, data, sender=sender)
    if len(parts) < 4 or len(parts[1]) != _PLACE.size or len(parts[3]) % 4:
        raise other(sender)
    kind, place, task, values, *names = parts
    found = {b"train": "train", b"evaluate": "evaluate"}.get(kind)
    if found is None:
        raise other(sender)
    try:
        metrics = tuple(name.decode() for name in names)
    except UnicodeDecodeError:
        raise other(sender) from None
    return Compute(
        kind="train" if found == "train" else "evaluate",
        round=_PLACE.unpack(place)[0],
        metrics=metrics,
        task=task,
        broadcast=np.frombuffer(values, "<f4").astype(np.float32),
    )


def pack_computed(computed: Computed | None) -> bytes:
    """Encode a result. None says that there is no result, and gives no reason."""
    if computed is None:
        return packed(_COMPUTED, [])
    vectors = [np.ascontiguousarray(v, "<f8").tobytes() for v in (computed.values, computed.metrics)]
    return packed(_COMPUTED, [_COUNT.pack(computed.examples), *vectors])


def unpack_computed(data: bytes, *, sender: str) -> Computed | None:
    """Decode a result. Raises RemoteProtocolError for any other bytes."""
    parts = parts_of(_COMPUTED, data, sender=sender)
    if not parts:
        return None
    if len(parts) != 3 or len(parts[0]) != _COUNT.size or any(len(part) % 8 for part in parts[1:]):
        raise other(sender)
    values, metrics = (np.frombuffer(part, "<f8").astype(np.float64) for part in parts[1:])
    return Computed(values=values, metrics=metrics, examples=_COUNT.unpack(parts[0])[0])


class Outside:
    """The relay that computes for a party. It is reachable only while its request is answered."""

    def __init__(self) -> None:
        self._ask: CohortQuery | None = None
        self._noted: list[str] = []

    def note(self, why: str) -> None:
        """Note for the party's owner why a result cannot be used."""
        self._noted.append(why)

    def noted(self) -> list[str]:
        """The notes since the last call."""
        noted, self._noted = self._noted, []
        return noted

    @contextmanager
    def at(self, query: CohortQuery) -> Iterator[None]:
        """Inside this context, `query` reaches the relay that brought the request."""
        self._ask = query
        try:
            yield
        finally:
            self._ask = None

    def compute(self, compute: Compute) -> Computed:
        """Have a result computed. Raises DataError if there is no result or no relay."""
        if self._ask is None:
            raise DataError("Expected a relay that computes for the party, got none: it abstains.")
        try:
            found = unpack_computed(self._ask(pack_compute(compute)), sender="relay")
        except (OSError, RemoteProtocolError) as error:
            raise DataError(f"Expected a result of the app, got none ({error}): it abstains.") from None
        if found is None:
            raise DataError("Expected a result of the app, and it failed: it abstains. Its own log says why.")
        return found


def answered(query: CohortQuery, request: bytes, compute: Callable[[Compute], Computed | None]) -> bytes:
    """The relay's side: give the party a request, compute for it if it asks, and return its reply.

    Args:
        query: gives the party a frame and returns its next one, always on the same connection.
    """
    reply = query(request)
    while is_compute(reply):
        reply = query(pack_computed(compute(unpack_compute(reply, sender="party"))))
    return reply
