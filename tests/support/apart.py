"""Parties in processes of their own, over pipes: the same objects as in one process, and bytes between them.

`Apart` is a server's transport. Each party has its own files, and hears frames: a call, a parcel, or the
directory that was pinned beforehand. A party that was killed is silent until it is started again.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import Algorithm
from securefl.algorithm.plan import Plan
from securefl.core.agreement import Directory, Member
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import PublicKey
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.streams import client_stream
from securefl.engine.attendance import Absence
from securefl.engine.drive import Driver, Packet
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.engine.server import ServerParty
from securefl.linear.registry import scheme_of as score_way
from securefl.linear.scheme import LinearScheme as ScoreWay
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord
from securefl.study.composition import composition
from securefl.study.config import Study, parse
from securefl.study.seeded import World
from securefl.study.world import build
from support.started import forks

_RESTARTS = 2
"""How often parties may be started again."""


def constant(name: str) -> Callable[[int], bytes]:
    """A party's randomness, so that two runs can be compared bit for bit. Noise and masks follow from it."""
    return lambda count: hashlib.shake_256(name.encode()).digest(count)


@dataclass(frozen=True)
class Own:
    """What each party reads for itself: the study's text, of which its plan is a part."""

    study: Study
    world: World
    algorithm: Algorithm
    plan: Plan

    @classmethod
    def of(cls, text: str) -> Own:
        study = parse(text)
        world = build(study, study.study.seeds[0])
        return cls(study, world, *composition(study, study.arms[0], world))

    @property
    def scores(self) -> ScoreWay | None:
        asks, clients = 2 * self.study.study.rounds, self.study.data.clients
        return score_way(
            self.plan.scores, parameters=self.study.privacy.parameters, asks=asks, clients=clients
        )

    @property
    def spec(self) -> dict[str, Any]:
        return {contribution.spec.name: contribution.spec for contribution in self.algorithm.contributions}

    def client(self, number: int, folder: Path) -> ClientParty:
        """One client, with a ledger and a journal of its own."""
        name, seed = client_name(number), self.world.seed
        return ClientParty(
            self.plan,
            self.algorithm.contributions,
            Ledger(folder / f"{name}.ledger", self.plan.terms()),
            Journal(folder / f"{name}.journal", random=constant(name)),
            {number: self.world.records[number]},
            rng=partial(client_stream, seed),
            scores=self.scores,
        )

    def key_holder(self, folder: Path) -> KeyHolderParty:
        record = OwnRecord(KEY_HOLDER, Journal(folder / "key-holder.journal", random=constant(KEY_HOLDER)))
        return KeyHolderParty(self.plan, self.spec, record, scores=self.scores)

    def server(self, folder: Path) -> ServerParty:
        record = OwnRecord(SERVER, Journal(folder / "server.journal", random=constant(SERVER)))
        clients = self.study.data.clients
        return ServerParty(self.plan, self.spec, record, clients=clients, scores=self.scores)


# A party's process ----------------------------------------------------------------------------------


def start_parties(text: str, folder: str, pipes: list[Connection], orders: Connection) -> None:
    """Fork a process for each party that is ordered, with a pipe of its own. Imports and data cost once."""
    own = Own.of(text)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for number, pipe in enumerate(pipes):
        try:
            order = json.loads(orders.recv_bytes())
        except EOFError:
            return
        if (child := os.fork()) == 0:
            for other in (*pipes[number + 1 :], orders):  # who is dead must have nobody else at its pipe
                other.close()
            serve(own, order["name"], folder, order["dies"], pipe)
            os._exit(0)
        pipe.close()
        orders.send_bytes(json.dumps(child).encode())


def serve(own: Own, name: str, folder: str, dies: str, pipe: Connection) -> None:
    """Hear frames until the pipe closes. dies: the act after whose record this process kills itself, once."""
    party = _party(own, name, Path(folder))
    if dies:
        _die_after(dies)
    while True:
        try:
            frame = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            answer = _heard(party, name, frame)
        except RemoteProtocolError as error:
            answer = {"refused": str(error)}
        pipe.send_bytes(json.dumps(answer).encode())


def _party(own: Own, name: str, folder: Path) -> ClientParty | KeyHolderParty:
    return own.key_holder(folder) if name == KEY_HOLDER else own.client(int(name[-4:]), folder)


def _heard(party: ClientParty | KeyHolderParty, name: str, frame: Mapping[str, Any]) -> dict[str, Any]:
    match frame["kind"]:
        case "member":
            session = bytes.fromhex(frame["session"])
            if isinstance(party, KeyHolderParty):
                return {"member": _written(party.member(session))}
            return {"member": _written(party.members(session, [name])[0])}
        case "enter":
            known = {one: _read(one, keys) for one, keys in frame["members"].items()}
            directory = Directory(
                bytes.fromhex(frame["session"]),
                known[SERVER],
                known.get(KEY_HOLDER),
                lambda names: [known[one] for one in names],
            )
            party.enter(directory)
            return {}
        case "call":
            key = party.call([name], b64decode(frame["data"]))
            assert party.drive is not None
            return {"key": b64encode(key).decode(), "parcels": _said(party.drive, party.drive.begin())}
        case "parcel":
            if party.drive is None:
                return {"parcels": []}
            data = b64decode(frame["data"])
            out = party.drive.deliver(Packet(frame["sender"], name, data))
            return {"parcels": _said(party.drive, out), "blamed": party.drive.traffic.rejected_from}
    raise AssertionError(frame)


def _said(drive: Driver, parcels: list[Packet]) -> list[list[str]]:
    while drive.working:
        parcels = [*parcels, *drive.work()]
    return [[one.sender, one.to, b64encode(one.data).decode()] for one in parcels]


def _written(member: Member) -> list[str]:
    return [member.identity.raw.hex(), member.channel.raw.hex()]


def _read(name: str, keys: Sequence[str]) -> Member:
    identity, channel = (PublicKey(bytes.fromhex(key)) for key in keys)
    return Member(name, identity, channel)


def _die_after(act: str) -> None:
    """Kill this process right after the first act of this kind is on record: nothing of it is said."""
    record = Journal.record

    def dying(self: Journal, acts: Any) -> Any:
        answers = record(self, acts)
        if any(getattr(one, "act", "begin") == act for one in acts):
            os.kill(os.getpid(), signal.SIGKILL)
        return answers

    Journal.record = dying  # type: ignore[method-assign]


# The server's transport -----------------------------------------------------------------------------


@dataclass
class Peer:
    """One party's process, and the pipe to it."""

    start: Callable[[str], tuple[int, Connection]]
    process: int = 0
    pipe: Connection | None = None
    last_call: bytes = b""

    def begin(self, dies: str = "") -> None:
        self.process, self.pipe = self.start(dies)

    def query(self, **frame: Any) -> dict[str, Any] | None:
        """Its answer; None once it is dead."""
        if self.pipe is None:
            return None
        try:
            self.pipe.send_bytes(json.dumps(frame).encode())
            answer: dict[str, Any] = json.loads(self.pipe.recv_bytes())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.end()
            return None
        return answer

    @property
    def alive(self) -> bool:
        return self.pipe is not None

    def end(self) -> None:
        if self.pipe is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)
            self.pipe.close()
        self.pipe = None


@dataclass
class Apart:
    """Every party of a study in its own process; a transport for the server, which is in this one.

    Attributes:
        refused: by party, why it refused the newest call or blamed somebody.
        watch: told every parcel that goes to or comes from a party.
    """

    text: str
    folder: Path
    names: Sequence[str]
    peers: dict[str, Peer] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    watch: Callable[[Packet], Packet | None] = lambda parcel: parcel
    dies: Mapping[str, str] = field(default_factory=dict)
    _directory: dict[str, Any] = field(default_factory=dict)
    _queue: deque[Packet] = field(default_factory=deque)
    _pipes: list[Connection] = field(default_factory=list)

    def __enter__(self) -> Apart:
        pairs = [forks().Pipe() for _ in range(len(self.names) + _RESTARTS)]
        self._pipes = [here for here, _ in pairs]
        self._orders, orders = forks().Pipe()
        there = [child for _, child in pairs]
        self._starter = forks().Process(
            target=start_parties, args=(self.text, str(self.folder), there, orders), daemon=True
        )
        self._starter.start()
        for one in (*there, orders):
            one.close()
        for name in self.names:
            self.peers[name] = Peer(partial(self._start, name))
            self.peers[name].begin(self.dies.get(name, ""))
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self.peers.values():
            peer.end()
        self._orders.close()
        self._starter.kill()
        self._starter.join()
        for pipe in self._pipes:
            pipe.close()

    def _start(self, name: str, dies: str) -> tuple[int, Connection]:
        self._orders.send_bytes(json.dumps({"name": name, "dies": dies}).encode())
        return json.loads(self._orders.recv_bytes()), self._pipes.pop(0)

    def enter(self, session: bytes, server: ServerParty) -> None:
        """Pin everybody's keys, as a roster made beforehand would, and have all enter the session."""
        members = {SERVER: _written(server.member(session))}
        for name, peer in self.peers.items():
            answer = peer.query(kind="member", session=session.hex())
            assert answer is not None
            members[name] = answer["member"]
        self._directory = {"kind": "enter", "session": session.hex(), "members": members}
        known = {name: _read(name, keys) for name, keys in members.items()}
        server.enter(
            Directory(
                session, known[SERVER], known.get(KEY_HOLDER), lambda some: [known[one] for one in some]
            )
        )
        for peer in self.peers.values():
            assert peer.query(**self._directory) == {}

    def restart(self, name: str) -> None:
        """Start a party again, with its files and nothing else; it enters the session it was in."""
        self.peers[name].begin()
        assert self.peers[name].query(**self._directory) == {}

    # What a server asks of a transport ----------------------------------------------------------------

    @property
    def absent(self) -> Mapping[str, Absence]:
        return dict.fromkeys(self.refused, Absence.REFUSED)

    def call(self, to: Sequence[str], data: bytes) -> Mapping[str, bytes]:
        self._queue.clear()
        answers = {}
        begun: list[list[str]] = []
        for name in to:
            answer = self._called(name, data)
            if answer is not None and "key" in answer:
                answers[name] = b64decode(answer["key"])
                begun += answer["parcels"]
        self._post(begun)
        return answers

    def _called(self, name: str, data: bytes) -> dict[str, Any] | None:
        self.peers[name].last_call = data
        answer = self.peers[name].query(kind="call", data=b64encode(data).decode())
        if answer is not None and "refused" in answer:
            self.refused[name] = answer["refused"]
        return answer

    def run(self, drive: Driver) -> None:
        self._queue.extend(drive.begin())
        while drive.unfinished:
            while self._queue:
                self._deliver(drive, self._queue.popleft())
            if drive.working:
                self._queue.extend(drive.work())
                continue
            moved, out = drive.deadline()
            self._queue.extend(out)
            if not moved:
                break

    def _deliver(self, drive: Driver, parcel: Packet) -> None:
        seen = self.watch(parcel)
        if seen is None:
            return
        if seen.to == SERVER:
            self._queue.extend(drive.deliver(seen))
            return
        peer = self.peers[seen.to]
        answer = peer.query(kind="parcel", sender=seen.sender, data=b64encode(seen.data).decode())
        if answer is None and seen.to == KEY_HOLDER:
            self._revive_key_holder()
        elif answer is not None:
            self.refused.update(dict.fromkeys(answer.get("blamed", ()), seen.to))
            self._post(answer.get("parcels", []))

    def _revive_key_holder(self) -> None:
        """Its operator starts it again. It is called to the place at hand; the server asks again."""
        self.restart(KEY_HOLDER)
        self._called(KEY_HOLDER, self.peers[KEY_HOLDER].last_call)

    def _post(self, parcels: Sequence[Sequence[str]]) -> None:
        self._queue.extend(Packet(sender, to, b64decode(data)) for sender, to, data in parcels)
