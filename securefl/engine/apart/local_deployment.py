"""Parties of updates that are computed outside them: one in a process of its own, or a simulation's in one.

    with House(plan, updates, clients=3, folder=Path("house")) as house:
        ...  # house.server for the server; house.where(name) for whoever carries a party's frames

A house is for simulations: whoever runs it holds all keys and all ledgers. In a deployment each owner serves
one party by `served`, under a user of its own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from socket import SHUT_RDWR, socket
from threading import Thread
from types import TracebackType

import numpy as np

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState
from securefl.core.agreement import Identity
from securefl.core.errors import DataError
from securefl.core.logs import logger
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.engine.apart import files
from securefl.engine.apart.asking import ServerSide
from securefl.engine.apart.computing import Outside
from securefl.engine.apart.connection import Connection
from securefl.engine.apart.party_session import PartySession
from securefl.engine.apart.roster import Pinned
from securefl.engine.apart.serving import listening, serve
from securefl.engine.apart.updates import Updates
from securefl.engine.party import Party
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.storage.counter import Counter
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord

_log = logger(__name__)
_SOCKET, _COUNTERS = "party.sock", "counters"
_GOODBYE = 5.0
# A party whose app has the records has none itself; an empty set would say that there is nothing to send.
_ELSEWHERE = (np.zeros((1, 0)), np.zeros(1))


class UpdateParty:
    """One client whose updates are computed outside it, or the key holder, with its files in one folder.

    Args:
        name: the party's; its number is that of its name in the roster.
        plan: its own copy. The noise is what it says.
        updates: what it may be asked for.
        pinned: its own roster.
        identity: its lasting keys.
        folder: of ledger, journal and diary, which are made where there are none.
        counter: a folder outside that one, and outside its backups, that notes how far the party got.
        patience: seconds that an app may compute for. So long all others wait: nobody who comes meanwhile
            can end the computing, since a client that is made to fail is missing from a sum.

    Raises ConfigError for a plan under which the updates can never leave, for a folder or a counter that
    another process holds, and for a counter that is lost. Raises DataError for an older copy of the folder.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        updates: Updates,
        pinned: Pinned,
        identity: Identity,
        folder: Path,
        counter: Path,
        *,
        patience: float = 3600.0,
    ) -> None:
        updates.check(plan)
        self._name, self._plan, self._updates, self._identity = name, plan, updates, identity
        self._patience = patience
        self.outside = Outside()
        self._clients = pinned.clients
        terms = None if name == KEY_HOLDER else plan.terms()
        opened = files.held if files.there(folder) else files.begun
        with ExitStack() as stack:
            self.files = stack.enter_context(opened(name, folder, Counter(counter), terms))
            diary, newest = self.files.diary, self.files.newest
            self.resident = PartySession(name, plan, updates.digest, pinned, diary, self._made, newest=newest)
            self._open = stack.pop_all()

    def _made(self, kept: Mapping[int, ClientState]) -> Party:
        if self.files.ledger is None:
            record = OwnRecord(KEY_HOLDER, self.files.journal, self._identity)
            return KeyHolderParty(self._plan, self._updates.spec(), record)
        return ClientParty(
            self._plan,
            self._updates.contributions(self._plan, self.outside),
            self.files.ledger,
            self.files.journal,
            {self._clients.index(self._name): _ELSEWHERE},
            rng=lambda number, who, query: np.random.default_rng(0),
            kept=kept,
            enrolled={self._name: self._identity},
        )

    def handle(self, line: Connection, request: bytes) -> bytes:
        """The reply to a request that came on this line. What is computed is asked for on the same line."""

        def query(frame: bytes) -> bytes:
            line.send(frame)
            answer = line.receive(wait=self._patience)
            if answer is None:
                raise DataError("Expected a result of the app, got the end of the connection: it abstains.")
            return answer

        with self.outside.at(query):
            reply = self.resident.answer(request)
        self.files.note()
        return reply

    def close(self) -> None:
        self._open.close()


def served(party: UpdateParty, listener: socket, *, allow: Collection[int]) -> None:
    """Answer for a party until its listener is closed. allow: the users, by number, who may connect.

    The listener is made after the party: `listening` takes the socket of whoever runs in the same folder.
    """
    serve(listener, party.handle, allow=allow, tell=party.files.diary.refuse)


class LocalDeployment:
    """All parties of a simulation in this process, each behind a Unix socket in a folder of its own.

    Args:
        plan, updates: of all of them.
        clients: how many there are.
        folder: where their files are, and their counters: it comes back whole from a backup, unseen. A house
            that is opened again there goes on with its ledgers, under new keys, in new sessions.
    """

    def __init__(self, plan: Plan, updates: Updates, *, clients: int, folder: Path) -> None:
        updates.check(plan)
        self._plan, self._updates, self._folder = plan, updates, folder
        names = [client_name(k) for k in range(clients)]
        held = [KEY_HOLDER] if plan.sum in ("two-server", "ckks") else []
        self._keys = {name: Identity.generate(name) for name in (*names, *held, SERVER)}
        self.pinned = Pinned({name: own.member() for name, own in self._keys.items()})
        self.server = ServerSide(
            plan=plan, pinned=self.pinned, record=OwnRecord(SERVER, Journal(), self._keys[SERVER])
        )
        self._listeners: list[socket] = []
        self._threads: list[Thread] = []

    def where(self, name: str) -> Path:
        """Where a party is reached."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(SHUT_RDWR)
        for thread in self._threads:
            thread.join(_GOODBYE)

    def _serve(self, name: str, ready: Future[socket]) -> None:
        path, counter = self.where(name), self._folder / _COUNTERS / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        own = (self._plan, self._updates, self.pinned, self._keys[name])
        # All of it in this thread: a database belongs to the one that opened it.
        try:
            with closing(UpdateParty(name, *own, path.parent, counter)) as party, listening(path) as listener:
                ready.set_result(listener)
                served(party, listener, allow={os.getuid()})
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


def socket_of(folder: Path, name: str) -> Path:
    """Where a house in this folder has a party's socket."""
    return folder / name / _SOCKET
