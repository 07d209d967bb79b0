"""Whoever runs the Asks of a session: all parties in one process, or a server whose parties live apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from securefl.algorithm.queries import Answers, ClientState, CohortQuery
from securefl.core.wire import Header
from securefl.engine.network import Network
from securefl.engine.observer import Log
from securefl.engine.server import ServerParty


class Engine(Protocol):
    """What a study needs of an engine."""

    @property
    def server(self) -> ServerParty: ...

    @property
    def kept(self) -> Mapping[int, ClientState]:
        """What each client has kept on its device so far, as far as this machine has it."""
        ...

    def query(
        self, query: CohortQuery, header: Header, network: Network | None = None
    ) -> tuple[Answers, Log]:
        """Run one Ask. Returns the answers, and what was noted of it on this machine.

        network: the faults that a simulation asks for. A real network has its own.
        """
        ...
