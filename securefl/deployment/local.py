"""A local deployment: all parties of a simulation in one process, each behind a Unix socket of its own.

    with LocalDeployment(plan, updates, clients=3, folder=Path("parties")) as deployment:
        ...  # deployment.server: the server; deployment.where(name): the socket of a party

It is for simulations, since one process holds all keys and all ledgers. In a deployment each owner serves one
`UpdateParty` by `server.served`, in a process of its own user. The updates are computed outside the parties.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from socket import SHUT_RDWR, socket
from threading import Thread

from securefl.algorithm.plan import Plan
from securefl.core.agreement import Identity
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment.engine import ServerSide
from securefl.deployment.plan_file import USUAL_SESSIONS, require_sessions
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.server import served
from securefl.deployment.update_party import UpdateParty, warn_of_state
from securefl.deployment.updates import Updates
from securefl.storage.files import folder_at
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord
from securefl.sums.registry import has_key_holder

_SOCKET, _COUNTERS = "party.sock", "counters"
_GOODBYE = 5.0


class LocalDeployment:
    """A local deployment: all parties of a simulation in this process, each behind a Unix socket.

        >>> import tempfile, securefl
        >>> from pathlib import Path
        >>> from securefl.deployment import LocalDeployment, Updates
        >>> plan = securefl.Plan(delta=1e-5, non_private=("update",), max_rounds=1)
        >>> with tempfile.TemporaryDirectory() as d:
        ...     with LocalDeployment(plan, Updates(), clients=2, folder=Path(d)) as house:
        ...         house.where("client-0001").is_socket(), sorted(house.server.pinned.members)
        (True, ['client-0000', 'client-0001', 'server'])

    Args:
        plan, updates: of all parties.
        clients: the number of clients.
        folder: of the parties' files and counters. Since the counters are inside, no check notices if the
            folder is restored from a backup. A deployment that is opened there again continues its ledgers,
            under new keys and in new sessions.
        sessions: as of `UpdateParty`, for all clients.

    Raises:
        ConfigError: the updates can never be released under the plan, or another process holds the folder.
    """

    def __init__(
        self, plan: Plan, updates: Updates, *, clients: int, folder: Path, sessions: int = USUAL_SESSIONS
    ) -> None:
        updates.check(plan)
        require_sessions(sessions)
        self._plan, self._updates, self._folder, self._sessions = plan, updates, folder, sessions
        warn_of_state(plan, updates, f"{clients} clients")
        names = [client_name(k) for k in range(clients)]
        held = [KEY_HOLDER] if has_key_holder(plan) else []
        self._keys = {name: Identity.generate(name) for name in (*names, *held, SERVER)}
        self.pinned = PinnedRoster({name: own.member() for name, own in self._keys.items()})
        self.server = ServerSide(
            plan=plan, pinned=self.pinned, record=OwnRecord(SERVER, Journal(), self._keys[SERVER])
        )
        self._listeners: list[socket] = []
        self._threads: list[Thread] = []

    def where(self, name: str) -> Path:
        """The path of a party's socket."""
        return socket_of(self._folder, name)

    def __enter__(self) -> LocalDeployment:
        try:
            for name in set(self._keys) - {SERVER}:
                listener: Future[socket] = Future()
                self._threads.append(Thread(target=self._serve, args=(name, listener), daemon=True))
                self._threads[-1].start()
                self._listeners.append(listener.result())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(SHUT_RDWR)
        for thread in self._threads:
            thread.join(_GOODBYE)

    def _serve(self, name: str, ready: Future[socket]) -> None:
        path, counter = self.where(name), self._folder / _COUNTERS / name
        folder_at(path.parent, mode=0o700)
        own = (self._plan, self._updates, self.pinned, self._keys[name])
        make = partial(UpdateParty, name, *own, path.parent, counter, sessions=self._sessions, warn=False)
        try:
            served(make, path, allow={os.getuid()}, ready=ready.set_result)
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


def socket_of(folder: Path, name: str) -> Path:
    """The path of a party's socket, for a local deployment in this folder."""
    return folder / name / _SOCKET
