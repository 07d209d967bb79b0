"""Parties of updates that are computed outside them: one in a process of its own, or a simulation's in one.

    with House(plan, updates, clients=3, folder=Path("house")) as house:
        ...  # house.server for the server; house.where(name) for whoever carries a party's frames

A house is for simulations: whoever runs it holds all keys and all ledgers. In a deployment each owner serves
one party by `served`, under a user of its own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from socket import socket
from threading import Event, Thread
from types import TracebackType

import numpy as np

from securefl.accounting.ledger import Ledger
from securefl.core.agreement import Identity
from securefl.core.errors import DataError
from securefl.core.logs import logger
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.engines.apart.asking import ServerSide
from securefl.engines.apart.computing import Outside
from securefl.engines.apart.diary import Diary
from securefl.engines.apart.line import Line
from securefl.engines.apart.resident import Resident
from securefl.engines.apart.roster import Pinned
from securefl.engines.apart.serving import listening, serve
from securefl.engines.apart.updates import Updates
from securefl.engines.party.clients import ClientParty
from securefl.engines.party.key_holder import KeyHolderParty
from securefl.messages import client_name
from securefl.plan import Plan
from securefl.rounds import Kept
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord

_log = logger(__name__)
_SOCKET = "party.sock"
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
        folder: of ledger, journal and diary; None keeps them in memory, for tests.
        patience: seconds that an app may compute for.

    Raises ConfigError for a plan under which the updates can never leave.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        updates: Updates,
        pinned: Pinned,
        identity: Identity,
        folder: Path | None,
        *,
        patience: float = 3600.0,
    ) -> None:
        updates.check(plan)
        self._name, self._plan, self._updates, self._identity = name, plan, updates, identity
        self._patience = patience
        self.outside = Outside()
        self.ledger = Ledger(_in(folder, "ledger.sqlite"), plan.terms())
        self._journal = Journal(_in(folder, "journal.sqlite"))
        self.diary = Diary(_in(folder, "diary.sqlite"))
        self._clients = pinned.clients
        self.resident = Resident(
            name,
            plan,
            updates.digest,
            pinned,
            self.diary,
            self._made,
            newest=lambda session: max(self.ledger.newest(session), self._journal.newest(session)),
        )

    def _made(self, kept: Mapping[int, Kept]) -> ClientParty | KeyHolderParty:
        if self._name == KEY_HOLDER:
            record = OwnRecord(KEY_HOLDER, self._journal, self._identity)
            return KeyHolderParty(self._plan, self._updates.sends(), record)
        return ClientParty(
            self._plan,
            self._updates.offers(self._plan, self.outside),
            self.ledger,
            self._journal,
            {self._clients.index(self._name): _ELSEWHERE},
            rng=lambda number, who, ask: np.random.default_rng(0),
            kept=kept,
            enrolled={self._name: self._identity},
        )

    def handle(self, line: Line, request: bytes) -> bytes:
        """The reply to a request that came on this line. What is computed is asked for on the same line."""

        def ask(frame: bytes) -> bytes:
            line.send(frame)
            answer = line.receive(wait=self._patience)
            if answer is None:
                raise DataError("Expected a result of the app, got the end of the connection: it abstains.")
            return answer

        with self.outside.at(ask):
            return self.resident.answer(request)

    def close(self) -> None:
        for one in (self.ledger, self._journal, self.diary):
            one.close()


def served(party: UpdateParty, listener: socket, *, allow: Collection[int]) -> None:
    """Answer for a party until its listener is closed. allow: the users, by number, who may connect."""
    serve(listener, party.handle, allow=allow, tell=party.diary.refuse)


class House:
    """All parties of a simulation in this process, each behind a Unix socket in a folder of its own.

    Args:
        plan, updates: of all of them.
        clients: how many there are.
        folder: where their files are; a house that is opened again there goes on with its ledgers, under new
            keys, in new sessions.
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
        self._listeners = ExitStack()
        self._threads: list[Thread] = []

    def where(self, name: str) -> Path:
        """Where a party is reached."""
        return socket_of(self._folder, name)

    def __enter__(self) -> House:
        for name in self._keys:
            if name == SERVER:
                continue
            path, ready = self.where(name), Event()
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            listener = self._listeners.enter_context(listening(path))
            self._threads.append(Thread(target=self._serve, args=(name, listener, ready), daemon=True))
            self._threads[-1].start()
            ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listeners.close()
        for thread in self._threads:
            thread.join(_GOODBYE)

    def _serve(self, name: str, listener: socket, ready: Event) -> None:
        # Made here: a database belongs to the thread that opened it.
        try:
            folder = self.where(name).parent
            party = UpdateParty(name, self._plan, self._updates, self.pinned, self._keys[name], folder)
        finally:
            ready.set()
        try:
            served(party, listener, allow={os.getuid()})
        finally:
            party.close()


def socket_of(folder: Path, name: str) -> Path:
    """Where a house in this folder has a party's socket."""
    return folder / name / _SOCKET


def _in(folder: Path | None, name: str) -> Path | str:
    return ":memory:" if folder is None else folder / name
