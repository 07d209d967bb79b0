"""The in-process engine: all parties in one process, over a simulated network with faults.

The parties are the same objects that run on machines of their own, and all messages pass as encoded bytes.
The engine makes their directory, gives them the server's calls, moves their messages, and collects their logs
for the person at this machine.

In a simulation, a `SimulationCache` does work once that every party would repeat on its own machine: decode
the same bytes, check a signature, agree on a key. One result serves all parties, because it is a function of
the arguments alone and is stored under all of them. A receiver with other limits, at another place, or that
expects another message has other arguments, and so its own result.

The two owners of a key agreement compute the same secret. The second one takes the first one's result.
A signature that a client's key made in this process is valid, because it is that key's: the key's owner did
what another party would check. Any other signature is checked, also one that differs in one bit. In the same
way a box that its dealer sealed in this process opens to what it sealed, with the hashes that it published;
any other box is opened by its receiver. The tree of a dealing follows from its bytes: the server takes the
one that its dealer built from the same bytes. The first client verifies every signature of a quorum, and the
others need no sample of a list that it found whole.

Formal guarantees:
- A failure is not stored. It fails again for each party.
- A shared message has no field that a party could change. A message with arrays is decoded for each receiver.
- No result is kept beyond one exchange.

Only `inprocess.simulated` makes a `SimulationCache`. A party in a deployment decodes and checks every message
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import Contribution
from securefl.algorithm.plan import CLEAR, Plan
from securefl.algorithm.queries import Answers, ClientState, CohortQuery, PerClient
from securefl.core import signing, wire
from securefl.core.agreement import Directory, Member
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.keys import PublicKey, SecretKey, Signature
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.signing import AgreementKey
from securefl.core.wire import Header, Limit
from securefl.core.wire.kinds import KEYS, element
from securefl.engine.attendance import Absence
from securefl.engine.drive import Driver
from securefl.engine.network import Network
from securefl.engine.observer import Log
from securefl.engine.party import Party
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.computing import Records, Streams, one_by_one
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.engine.server import ServerParty
from securefl.linear.scheme import LinearScheme
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord
from securefl.sums.registry import scheme_of
from securefl.training.jobs import Trainer

T = TypeVar("T")
MOST_MESSAGES: Final = 32
"""The most messages that the cache stores, so that memory does not grow. Few have several receivers."""
_UNCHANGING: Final = (int, float, str, bytes, *KEYS)


class SimulationCache:
    """A cache of one exchange: messages, checked signatures and agreed keys that several parties need."""

    def __init__(self) -> None:
        self._messages: dict[tuple[bytes, Header], tuple[Mapping[Any, Limit], Any]] = {}
        self._signed: set[tuple[bytes, bytes, bytes]] = set()
        self._agreed: dict[tuple[bytes, bytes, bytes], SecretKey] = {}
        self._made: dict[tuple[bytes, ...], Any] = {}

    def __len__(self) -> int:
        return len(self._messages) + len(self._signed) + len(self._agreed) + len(self._made)

    def decode(self, data: bytes, header: Header, kinds: Mapping[type[T], Limit], sender: str) -> T:
        """As `wire.decode`. The sender is no part of the cache's key, since only an error names it."""
        # Hashing a model's bytes takes long, and a message with arrays is never stored.
        known: Any = next((kind for kind in kinds if wire.begins_as(data, header, kind)), None)
        if known is None or not _unchanging(known):
            return wire.decode(data, header, kinds, sender)
        stored = self._messages.get((data, header))
        # Machines under one agreement have one table of limits, which is then equal by its identity.
        if stored is not None and stored[0] == kinds:
            same: T = stored[1]
            return same
        found: T = wire.decode(data, header, kinds, sender)
        if len(self._messages) >= MOST_MESSAGES:
            del self._messages[next(iter(self._messages))]  # the oldest
        self._messages[data, header] = kinds, found
        return found

    def verify(self, public: PublicKey, signature: Signature, message: bytes) -> None:
        """As `signing.verify`."""
        if (public.raw, signature.raw, message) not in self._signed:
            signing.verify(public, signature, message)
            self.signed(public, signature, message)

    def signed(self, public: PublicKey, signature: Signature, message: bytes) -> None:
        """The owner of `public` has made this signature in this process, or somebody has checked it."""
        self._signed.add((public.raw, signature.raw, message))

    def agree(self, own: AgreementKey, other: PublicKey, purpose: bytes) -> SecretKey:
        """As `own.agree`. Both sides compute the same secret, and the second one takes the first one's."""
        one, two = own.public.raw, other.raw
        key = (one, two, purpose) if one < two else (two, one, purpose)
        # Removed when the other side takes it, because a cohort of K clients has K^2 of them.
        if (found := self._agreed.pop(key, None)) is None:
            found = self._agreed[key] = own.agree(other, purpose)
        return found

    def made(self, what: tuple[bytes, ...], result: Any) -> None:
        """The maker of these bytes says what their receiver's check gives."""
        self._made[what] = result

    def found(self, what: tuple[bytes, ...]) -> Any:
        """Return what the maker of exactly these bytes said; None for any other bytes."""
        # removed when it is taken: there is one receiver
        return self._made.pop(what, None)

    def forget(self) -> None:
        """Empty the cache at the end of an exchange."""
        self._messages.clear()
        self._signed.clear()
        self._agreed.clear()
        self._made.clear()


@cache
def _unchanging(cls: Any) -> bool:
    """Whether all fields of a message class are immutable."""
    return all(element(hint) in _UNCHANGING for _, hint in cls.__wire__.fields)


class InProcess:
    """An engine that runs a server, its clients and a key holder in this process.

    They share a cache of what several of them need.

    clients: each party object runs one client or several. Together they have every number once.
    Raises ConfigError if two parties have one name.
    """

    def __init__(
        self,
        server: ServerParty,
        clients: Sequence[ClientParty],
        key_holder: KeyHolderParty | None = None,
    ) -> None:
        self.server = server
        self._clients = clients
        self._key_holder = key_holder
        holders = [] if key_holder is None else [key_holder]
        self._parties: list[Party] = [*clients, *holders]
        self._at = {name: party for party in clients for name in party.names}
        names = [name for party in self._parties for name in party.names]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ConfigError(
                f"Expected each party once, got {', '.join(twice)} twice. Number clients apart."
            )
        self._session: bytes | None = None
        self._once = SimulationCache()

    @property
    def kept(self) -> Mapping[int, ClientState]:
        """The state of each client by its number, for checkpoints and callbacks."""
        if len(self._clients) == 1:  # a study reads this every round, so it is not copied
            return self._clients[0].kept
        return {k: own for party in self._clients for k, own in party.kept.items()}

    def away(self, number: int) -> frozenset[int]:
        """Nobody: all parties are in this process."""
        return frozenset()

    def query(
        self, query: CohortQuery, header: Header, network: Network | None = None
    ) -> tuple[Answers, Log]:
        """Run one cohort query over the network, by default without faults. Returns the answers and a log.

        Errors as for `ServerParty.query`.
        """
        if header.session != self._session:
            self._enter(header.session)
        for log in (self.server.log, *(party.log for party in self._parties)):
            log.take()  # drop the notes of an earlier query that ended in an error
        carrier = _Carrier(self._parties, network or Network(), self._once)
        answers = self.server.query(query, header, carrier)
        # Gathered after the last machine has ended, so that no note of a party can reach a machine.
        log = Log()
        log.add(self.server.log.take())
        for party in self._parties:
            log.add(party.log.take())
        log.add(carrier.log)
        for clients in self._clients:
            clients.settle()
        _tell_unanswered(query, answers, log)
        return answers, log

    def _enter(self, session: bytes) -> None:
        holder = None if self._key_holder is None else self._key_holder.member(session)

        # A function, not a list, so that keys are made only for clients that are called.
        def members(names: Sequence[str]) -> list[Member]:
            found: dict[str, Member] = {}
            for party in {id(self._at[name]): self._at[name] for name in names}.values():
                own = [name for name in names if self._at[name] is party]
                found.update(zip(own, party.members(session, own), strict=True))
            return [found[name] for name in names]

        once = self._once
        directory = Directory(
            session,
            self.server.member(session),
            holder,
            members,
            verify=once.verify,
            agree=once.agree,
            signed=once.signed,
            known=once,
        )
        self.server.enter(directory)
        for party in self._parties:
            party.enter(directory)
        self._session = session


class _Carrier:
    """The transport of one query. Calls arrive at once; messages pass over the simulated network."""

    def __init__(self, parties: Sequence[Party], network: Network, once: SimulationCache) -> None:
        self.log = Log()
        self.absent: dict[str, Absence] = {}
        self._once = once
        self._parties = parties
        self._network = network

    def call(self, to: Sequence[str], data: bytes) -> Mapping[str, bytes]:
        called, answers = set(to), {}
        for party in self._parties:
            own = [name for name in party.names if name in called]
            if not own:
                continue
            try:
                answer = party.call(own, data)
            except RemoteProtocolError as error:
                # The server sees only silence, as from a remote party. The log names the sender at fault.
                self.log.traffic.rejected_from[error.sender] = str(error)
                self.absent.update(dict.fromkeys(own, Absence.REFUSED))  # a constant reply, without a reason
                continue
            answers.update(dict.fromkeys(own, answer))
        return answers

    def run(self, drive: Driver) -> None:
        # If a party was not called here, or refused the call, its driver still belongs to an earlier place.
        # Such drivers are left out.
        here = [party.drive for party in self._parties if party.drive is not None]
        clients = [own for own in here if own.header == drive.header and KEY_HOLDER not in own.machines]
        holders = [own for own in here if own.header == drive.header and KEY_HOLDER in own.machines]
        for own in clients:
            own.decode = self._once.decode
        try:
            self._network.run([*clients, drive, *holders])
        finally:
            self._once.forget()
        for own in (*clients, *holders):
            self.log.traffic.add(own.traffic)


def simulated(
    plan: Plan,
    contributions: Sequence[Contribution],
    ledger: Ledger,
    records: Sequence[Records],
    *,
    rng: Streams,
    held: Sequence[Records] | None = None,
    journal: Journal | None = None,
    scores: LinearScheme | None = None,
    kept: Mapping[int, ClientState] | None = None,
    proven_cheaters: Iterable[int] = (),
    retries_left: int | None = None,
    trainer: Trainer = one_by_one,
    holder_of: Callable[[int], str] = client_name,
) -> InProcess:
    """Make the engine of a simulation. The clients' ledgers share one file, their records of acts another.

    Args:
        contributions: the contributions that clients may be asked for.
        records: x and y of each client, client 0 first.
        rng: a client's own stream, from (round, client, number of the query within the round).
        scores: the plan's linear scheme; None if the plan has numbers in the clear.
        held: the x and y of each client that it tests on and never trains on; None without a hold-out.
        kept, proven_cheaters, retries_left: as they were when an earlier run of this session ended.
        trainer: runs the clients' local training.
        holder_of: the name of a client in the ledger.
    """
    if (scores is None) != (plan.scores == CLEAR):
        raise ConfigError(
            f"Expected a linear scheme if and only if scores are encrypted, got scores = {plan.scores!r}."
        )
    journal = journal or Journal()
    spec = {contribution.spec.name: contribution.spec for contribution in contributions}
    numbered = dict(enumerate(records))
    clients = ClientParty(
        plan,
        contributions,
        ledger,
        journal,
        numbered,
        rng=rng,
        held=None if held is None else dict(enumerate(held)),
        scores=scores,
        kept=kept,
        trainer=trainer,
        holder_of=holder_of,
    )
    server = ServerParty(
        plan,
        spec,
        OwnRecord(SERVER, journal),
        clients=len(records),
        scores=scores,
        proven_cheaters=proven_cheaters,
        retries_left=retries_left,
    )
    scheme = scheme_of(plan)
    if scores is None and (scheme is None or not scheme.key_holder_learns):
        return InProcess(server, [clients])
    holder = KeyHolderParty(plan, spec, OwnRecord(KEY_HOLDER, journal), scores=scores)
    return InProcess(server, [clients], holder)


def _tell_unanswered(query: CohortQuery, answers: Answers, log: Log) -> None:
    """Name the key holder in the log if numbers are missing and no client is named for it."""
    told = {*log.abstained, *log.traffic.rejected_from}
    concealed: list[PerClient] = [
        per_client for per_client in query.per_client if per_client.query is not None
    ]
    # A client that is in a sum, or gave another number, was not silent. Only its encrypted number is missing.
    answered = {k for per_client in query.per_client for k in answers.per_client[per_client.spec.name]} | set(
        answers.survivors
    )
    missing = {
        k for per_client in concealed for k in answered - set(answers.per_client[per_client.spec.name])
    }
    untold = [k for k in missing if client_name(k) not in told]
    if untold and not told & {SERVER, KEY_HOLDER}:
        log.abstained[KEY_HOLDER] = (
            f"It opened no number of {len(untold)} clients: it refused without a reason or fell silent."
        )
