"""A sans-IO driver of one party's machines: packets go in, packets come out.

A driver belongs to one place of a session. It holds no secrets and no network. The engine delivers packets to
it, lets it work, and carries its packets away. If a peer sends an invalid packet, the driver refuses that
peer's later packets to the same machine; no other link is affected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from securefl.core.errors import RemoteProtocolError
from securefl.core.machine import Expects, Machine, Step
from securefl.core.wire import Header, Limit, decode, encode, peek


class Worker:
    """The part of a party that does its machines' slow work, in waves, and encodes their messages.

    A party with a ledger or a journal overrides what must be on record first. Without either, an order runs
    as it is, and a release in a message is refused by the encoder.
    """

    def work(self, needs: Sequence[tuple[str, Any]]) -> Sequence[Any]:
        """Run the machines' slow work. Each order carries all its inputs."""
        return [order.run() for _, order in needs]

    def encode(self, outbox: Sequence[tuple[Header, Any]]) -> Sequence[bytes]:
        """Encode these messages, each once for all its receivers."""
        # `outbox` holds the messages, so an identity stays that of one message.
        made: dict[tuple[Header, int], bytes] = {}
        for header, body in outbox:
            if (place := (header, id(body))) not in made:
                made[place] = encode(header, body)
        return [made[header, id(body)] for header, body in outbox]


@dataclass(frozen=True)
class Packet:
    """One message on its way to one receiver."""

    sender: str
    to: str
    data: bytes = field(repr=False)


@dataclass
class Traffic:
    """Bytes per party and refused senders, over one exchange.

    sent: every message once, whether it arrives or not. received: every copy that arrived in time and could
    be decoded. rejected_from: the senders of refused messages, and why. late: messages of an earlier place.
    """

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    rejected_from: dict[str, str] = field(default_factory=dict)
    late: int = 0

    def add(self, other: Traffic) -> None:
        """Add another exchange's traffic."""
        self.sent.update(other.sent)
        self.received.update(other.received)
        self.rejected_from |= other.rejected_from
        self.late += other.late


class Driver:
    """Drives the machines of one party at one place.

    Attributes:
        machines: by name. A party of one client has one machine.
        heard: the senders of messages that a machine accepted.
        decode: decodes a message. The engine of a simulation sets one that decodes once for all receivers.
    """

    decode: Callable[[bytes, Header, Mapping[type[Any], Limit], str], Any]

    def __init__(self, machines: Mapping[str, Machine[Any]], header: Header, worker: Worker) -> None:
        self.machines = machines
        self.header = header
        self.decode = decode
        self.results: dict[str, Any] = {}
        self.traffic = Traffic()
        self.heard: set[str] = set()
        self._worker = worker
        self._states: dict[str, Any] = {}
        self._needs: list[tuple[str, Any]] = []
        self._refused: set[tuple[str, str]] = set()  # (sender, receiver) links after an invalid packet

    @property
    def unfinished(self) -> list[str]:
        return [party for party in self.machines if party not in self.results]

    def begin(self) -> list[Packet]:
        return self._absorb({party: machine.begin() for party, machine in self.machines.items()})

    def deliver(self, packet: Packet) -> list[Packet]:
        """Decode one packet and hand it to its machine.

        `traffic.rejected_from` names the sender of an invalid one.
        A packet that comes before `begin` is lost, as on a network.
        """
        machine = self.machines.get(packet.to)
        link = (packet.sender, packet.to)
        if machine is None or packet.to not in self._states or link in self._refused:
            return []
        state = self._states[packet.to]
        expects = machine.expects(state)
        try:
            body = self._read(packet, expects)
            if body is None:
                self.traffic.late += 1
                return []
            self.traffic.received[packet.to] += len(packet.data)
            step = machine.receive(state, packet.sender, body)
            self.heard.add(packet.sender)
            return self._absorb({packet.to: step})
        except RemoteProtocolError as error:
            self._refused.add(link)
            self.traffic.rejected_from[packet.sender] = str(error)
            return []

    @property
    def working(self) -> bool:
        """Whether any machine waits for slow work."""
        return bool(self._needs)

    def work(self) -> list[Packet]:
        """Do all slow work that the machines wait for, in one wave."""
        # Taken out first, because an answer may bring a new need, which waits for the next wave.
        needs, self._needs = self._needs, []
        if not needs:
            return []
        answers = self._worker.work(needs)
        return self._absorb(
            {
                party: self.machines[party].provide(self._states[party], answer)
                for (party, _), answer in zip(needs, answers, strict=True)
            }
        )

    def deadline(self) -> tuple[bool, list[Packet]]:
        """Tell all machines that a deadline passed. Returns whether any machine moved, and its packets."""
        before = {party: self._states[party] for party in self.unfinished}
        steps = {party: self.machines[party].deadline(state) for party, state in before.items()}
        # States are frozen, so a step without a change returns the same object.
        moved = any(step.state is not before[party] for party, step in steps.items())
        out = self._absorb(steps)
        return moved or bool(out) or self.working, out

    def _absorb(self, steps: Mapping[str, Step[Any]]) -> list[Packet]:
        outbox = [(party, envelope) for party, step in steps.items() for envelope in step.out]
        for party, step in steps.items():
            self._take(party, step)
        if not outbox:
            return []
        # Encoded together, so that a ledger commits the charges of one wave in one durable write.
        encoded = self._worker.encode([(self.header, envelope.message) for _, envelope in outbox])
        packets = []
        for (party, envelope), data in zip(outbox, encoded, strict=True):
            for to in envelope.to:
                self.traffic.sent[party] += len(data)
                packets.append(Packet(party, to, data))
        return packets

    def _take(self, party: str, step: Step[Any]) -> None:
        self._states[party] = step.state
        if step.need is not None:
            self._needs.append((party, step.need.order))
        if step.result is not None:
            self.results[party] = step.result

    def _read(self, packet: Packet, expects: Expects) -> Any:
        """The message, or None if it is late."""
        here = expects.header
        try:
            return self.decode(packet.data, here, expects.kinds, packet.sender)
        except RemoteProtocolError:
            # An honest peer can be late, so a message of an earlier place is not held against it.
            came = peek(packet.data, packet.sender)
            if came.session == here.session and came.place() < here.place():
                return None
            raise
