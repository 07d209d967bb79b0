"""One client of a large masked cohort, apart: no other party's work of the process is shared with it.

    python benchmarks/secagg_client.py 1000 3000

Plays client 0 of N clients x 10^5 values in active mode, 10 % corrupt and 10 % dropped, with encoded bytes.
Its neighbours deal to it, and every survivor signs. No other client plays: their entries are random bytes,
since a client verifies no signature of a stranger's entry. Prints CPU milliseconds without quantising, beside
the keystream of as many masks, and each message's part.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
from collections.abc import Callable
from time import process_time
from typing import Any

from masked_round import grid, identities, keystream, ours, update

from securefl.accounting.events import NO_COST
from securefl.core.keys import Commitment, SecretKey, Signature
from securefl.core.release import SERVER, Release, ReleaseKey
from securefl.core.signing import AgreementKey
from securefl.core.wire import Header, decode, encode
from securefl.secagg import Agreement, Channels, Client, Policy, Roster, Vector
from securefl.secagg.agreement import ClosedRoster, Entry
from securefl.secagg.dealing import Published, deal, published
from securefl.secagg.messages import Confirmed, Dealt, Quorum, RosterClosed, Survivors

LENGTH, POLICY = 10**5, Policy(mode="active", corrupt=0.1, dropout=0.1)


class Apart:
    """A client whose steps are timed one by one."""

    def __init__(self, clients: int) -> None:
        owners = identities(clients)
        self.parts: dict[str, float] = {}
        self.header = Header(os.urandom(32), 1, 1, 2)
        self.agreement = Agreement(
            header=self.header,
            roster=Roster(tuple(owner.member() for owner in owners)),
            parameters=POLICY.parameters(clients),
            vectors=(Vector(name="update", length=LENGTH, bits=32, bound=grid(clients).limit),),
            plan=bytes(32),
            task=bytes(32),
        )
        self.machine = Client(agreement=self.agreement, channels=self.channels(0), policy=POLICY)
        self.step: Any = None

    def channels(self, number: int) -> Channels:
        roster = self.agreement.roster
        return Channels(identities(len(roster.members))[number], roster, self.header.session)

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        gc.collect()  # the keys of a whole cohort are here, which a real client does not have
        began = process_time()
        found = work()
        self.parts[name] = self.parts.get(name, 0.0) + 1e3 * (process_time() - began)
        return found

    def provide(self, name: str, answer: Any) -> None:
        self.step = self.timed(name, lambda: self.machine.provide(self.step.state, answer))

    def receive(self, message: Any) -> None:
        data, expects = encode(self.header, message), self.machine.expects(self.step.state)

        def work() -> Any:
            read = decode(data, expects.header, expects.kinds, SERVER)
            return self.machine.receive(self.step.state, SERVER, read)

        self.step = self.timed(type(message).__name__, work)

    def run(self) -> None:
        """Play the round. Raises SystemExit unless the client opens its shares."""
        clients = len(self.agreement.roster.members)
        self.step = self.timed("begin", self.machine.begin)
        self.provide("advertise", SecretKey(os.urandom(32)))
        keys = [AgreementKey.generate() for _ in range(clients)]
        said = self.step.out[0].message
        entries = {0: Entry(said.key, said.nonce, said.signature)}
        for number in range(1, clients):
            entries[number] = Entry(
                keys[number].public, Commitment(os.urandom(32)), Signature(os.urandom(64))
            )
        rows = entries.values()
        self.receive(
            RosterClosed(
                members=tuple(entries),
                keys=tuple(row.key for row in rows),
                nonces=tuple(row.nonce for row in rows),
                signatures=tuple(row.signature for row in rows),
            )
        )
        self.provide("deal", True)
        closed = ClosedRoster(self.agreement, entries)
        dealt = [self.dealing(closed, number, keys[number]) for number in closed.graph.neighbours[0]]
        self.receive(
            Dealt(
                dealers=tuple(range(clients)),
                sealed=tuple(of.boxes[0] for of in dealt),
                marks=tuple(of.marks(0) for of in dealt),
                evidence=tuple(of.evidence(0) for of in dealt),
            )
        )
        self.provide("mask", True)
        self.mask()
        self.agree(closed, tuple(range(clients)), tuple(range(clients - clients // 10)))
        if self.step.result != "answered":
            raise SystemExit(f"Expected a client that opens its shares, got {self.step.result}.")

    def dealing(self, closed: ClosedRoster, number: int, key: AgreementKey) -> Published:
        seed = SecretKey(os.urandom(32))
        said, _ = deal(closed, self.channels(number), seed, key.secret, os.urandom)
        return published(closed, number, said)

    def mask(self) -> None:
        order = self.step.need.order
        integers = grid(len(self.agreement.roster.members)).quantise(update(0, LENGTH))
        numbers = self.timed("conceal", lambda: order.conceal["update"](integers).numbers)
        at = self.header
        key = ReleaseKey(order.client, at.session, at.round, at.stage, at.attempt, "update")
        release = Release(key=key, unit="record", form="masked", charge=NO_COST, _numbers=numbers)
        self.provide("send", (release,))

    def agree(self, closed: ClosedRoster, dealers: tuple[int, ...], survivors: tuple[int, ...]) -> None:
        owners = identities(len(dealers))
        self.receive(Survivors(survivors=survivors, dropped=dealers[len(survivors) :]))
        self.provide("sign", True)
        text = closed.survival(dealers, survivors)
        near = closed.surviving_neighbours(0, set(survivors))
        said = hashlib.sha256(text).digest()
        tags = tuple(self.channels(other).tag(closed, other, 0, said) for other in near)
        self.receive(Confirmed(tags=tags))
        signatures = tuple(owners[number].signing.sign(text) for number in survivors)
        self.receive(Quorum(signers=survivors, signatures=signatures, others=(), inputs=()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clients", type=int, nargs="+")
    chosen = parser.parse_args()
    ours(Policy(mode="active", corrupt=0.0, dropout=0.0), 3, 10, 0)  # loads what is loaded once
    for clients in chosen.clients:
        one = Apart(clients)
        one.run()
        spent, near = sum(one.parts.values()), one.agreement.parameters.neighbours
        floor = keystream(near + 1, LENGTH)
        print(f"{clients} clients, {near} neighbours: {spent:.1f} ms, {spent / floor:.1f} x its keystream")
        print("  " + ", ".join(f"{name} {part:.2f}" for name, part in one.parts.items()), flush=True)


if __name__ == "__main__":
    main()
