"""A local deployment: all parties of a simulation in one process, each behind a Unix socket of its own.

    with LocalDeployment(plan, updates, clients=3, folder=Path("parties")) as deployment:
        ...  # deployment.server: the server; deployment.where(name): the socket of a party

It is for simulations, since one process holds all keys and all ledgers. In a deployment each owner serves one
`UpdateParty` by `server.served`, in a process of its own user. The updates are computed outside the parties.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from socket import SHUT_RDWR, socket
from threading import Thread

import numpy as np

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState
from securefl.core.agreement import Identity
from securefl.core.logs import logger
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment.computing import Outside
from securefl.deployment.engine import ServerSide
from securefl.deployment.files import Count, held
from securefl.deployment.plan_file import USUAL_SESSIONS, require_sessions
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.server import Relay, Served, served
from securefl.deployment.session_cap import by_keyword
from securefl.deployment.session_store import there
from securefl.deployment.updates import Updates
from securefl.engine.party import Party
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.engine.privacy_card import not_held
from securefl.storage.counter import Counter
from securefl.storage.files import folder_at
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord

_log = logger(__name__)
_SOCKET, _COUNTERS = "party.sock", "counters"
_GOODBYE = 5.0
# The app has the records, not the party. Empty arrays would mean a client without records.
_ELSEWHERE = (np.zeros((1, 0)), np.zeros(1))


class UpdateParty:
    """One client whose updates are computed outside it, or the key holder, with its files in one folder.

    Args:
        name: the party's. A client's number is the place of its name in the roster.
        plan: its own copy, which also sets the noise.
        updates: the values that it may be asked for.
        pinned: its own roster.
        identity: its lasting keys.
        folder: of the file with its ledger, journal and diary. It is created if it does not exist.
        counter: a folder outside that one, and outside its backups, that stores the party's progress.
        sessions: how many sessions without noise its owner agrees to, over the whole life of the folder (see
            `session_cap`).
        patience: seconds that an app may compute for. All other requests wait meanwhile. No other connection
            can end the computation, because a client that is made to fail is missing from a sum.
        warn: whether the log says that state of the app is not held; a simulation says it for all clients.

    Raises ConfigError if the updates can never be released under the plan, for `sessions` below 1, if another
    process holds the folder or the counter, and if the counter is lost. Raises DataError for an older copy
    of the folder.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        updates: Updates,
        pinned: PinnedRoster,
        identity: Identity,
        folder: Path,
        counter: Path,
        *,
        sessions: int = USUAL_SESSIONS,
        patience: float = 3600.0,
        warn: bool = True,
    ) -> None:
        updates.check(plan)
        if warn and name != KEY_HOLDER:
            _warn_of_state(plan, updates, name)
        self._name, self._plan, self._updates, self._identity = name, plan, updates, identity
        self._patience = patience
        self._clients = pinned.clients
        terms = None if name == KEY_HOLDER else plan.terms()
        with ExitStack() as stack:
            self.files = stack.enter_context(
                held(name, folder, Counter(counter), terms, new=not there(folder))
            )
            self.outside = Outside(self.files.diary.miss)
            self.resident = self.files.session(
                plan,
                updates.digest,
                pinned,
                updates.spec(plan),
                self._made,
                allowed=sessions,
                how=by_keyword(sessions),
            )
            self._open = stack.pop_all()

    def _made(self, count: Count, session: bytes, kept: Mapping[int, ClientState]) -> Party:
        if self.files.ledger is None:
            record = OwnRecord(KEY_HOLDER, self.files.journal, self._identity)
            return KeyHolderParty(self._plan, self._updates.spec(self._plan), record)
        return ClientParty(
            self._plan,
            self._updates.contributions(self._plan, self.outside),
            self.files.ledger,
            self.files.journal,
            {self._clients.index(self._name): _ELSEWHERE},
            rng=lambda number, who, query: np.random.default_rng(0),
            kept=kept,
            enrolled={self._name: self._identity},
            count_session=count,
        )

    def handle(self, relay: Relay, request: bytes) -> bytes:
        """The reply to a request that this relay brought. The relay gets orders to compute."""
        with self.outside.at(lambda order: relay.query(order, seconds=self._patience)):
            return self.resident.answer(request)

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Served:
        return Served(self.handle, self.files.diary.refuse)

    def __exit__(self, *_: object) -> None:
        self.close()


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
        _warn_of_state(plan, updates, f"{clients} clients")
        names = [client_name(k) for k in range(clients)]
        held = [KEY_HOLDER] if plan.sum in ("two-server", "ckks") else []
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


def _warn_of_state(plan: Plan, updates: Updates, whose: str) -> None:
    if loose := not_held(plan, [*updates.spec(plan).values()]):
        _log.warning("%s: %s", whose, loose)


def socket_of(folder: Path, name: str) -> Path:
    """The path of a party's socket, for a local deployment in this folder."""
    return folder / name / _SOCKET
