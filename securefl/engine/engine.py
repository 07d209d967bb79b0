"""The interface of an engine, which runs cohort queries.

`InProcess` runs all parties in one process. `RemoteEngine` runs the server, and reaches the other parties
over a network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from securefl.algorithm.queries import Answers, ClientState, CohortQuery
from securefl.core.wire import Header
from securefl.engine.network import Network
from securefl.engine.observer import Log
from securefl.engine.server import ServerParty


class Engine(Protocol):
    """The part of an engine that a study uses."""

    @property
    def server(self) -> ServerParty: ...

    @property
    def kept(self) -> Mapping[int, ClientState]:
        """The state of each client by its number, for the clients whose state is on this machine."""
        ...

    def away(self, number: int) -> frozenset[int]:
        """The clients that cannot be asked in round `number`, which begins, since they cannot be reached.

        An engine over a real network first waits until enough parties are present, or raises an error.
        """
        ...

    def query(
        self, query: CohortQuery, header: Header, network: Network | None = None
    ) -> tuple[Answers, Log]:
        """Run one cohort query. Returns the answers, and the log that this machine's parties kept of it.

        network: the simulated network with its faults. An engine over a real network ignores it.
        """
        ...
