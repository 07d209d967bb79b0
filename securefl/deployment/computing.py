"""Outside computation: a party has training or evaluation done by the relay that brought it the request.

    relay                                 party
      |------ request -------------------->|
      |<----- Compute ---------------------|   the broadcast, and the public task of the order
      |------ Computed ------------------->|   the model, its metrics and the number of examples
      |<----- reply -----------------------|   protected: clipped, noised, hidden, charged

Both use the same connection; `connection.send` is the relay's side. The party charges its ledger before it
sends `Compute`. The result comes from foreign code, and is checked before it is protected. A relay that has
no result says `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from securefl.core.errors import DataError, RemoteProtocolError
from securefl.deployment.messages import Compute, Computed, Refused, decode_envelope, encode_envelope

Query = Callable[[bytes], bytes]
"""Gives the other end of a connection an envelope, and returns its answer on the same connection."""


class Outside:
    """The relay that computes for a party. It is reachable only while its request is answered.

    note: tells the party's owner why a result cannot be used, or was cut (see `SessionStore.miss`).
    """

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._query: Query | None = None
        self.note = note

    @contextmanager
    def at(self, query: Query) -> Iterator[None]:
        """Inside this context, `query` reaches the relay that brought the request."""
        self._query = query
        try:
            yield
        finally:
            self._query = None

    def compute(self, compute: Compute) -> Computed:
        """Have a result computed. Raises DataError if there is no result or no relay."""
        if self._query is None:
            raise DataError("Expected a relay that computes for the party, got none: it abstains.")
        try:
            answer = self._query(encode_envelope(compute))
            found = decode_envelope(answer, Computed, Refused, sender="relay")
        except (OSError, RemoteProtocolError) as error:
            raise DataError(f"Expected a result of the app, got none ({error}): it abstains.") from None
        if isinstance(found, Refused):
            raise DataError(
                "Expected a result of the app, got none: it failed, or its relay has none. The party "
                "abstains. Its own log says why."
            )
        return found
