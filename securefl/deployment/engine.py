"""The engine of a deployment: it runs a server's cohort queries with parties on other machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from securefl.accounting.ledger import Ledger
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, ClientState, CohortQuery, ValueSpec
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, ReleaseKey
from securefl.core.wire import Header
from securefl.deployment.gathering import AT_ONCE, Gathering, Patience
from securefl.deployment.messages import Enter
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.transport import RemoteTransport
from securefl.deployment.visits import SendAndReceive, Visits, lasting_keys
from securefl.engine.account import Asked
from securefl.engine.attendance import Absence
from securefl.engine.network import Network
from securefl.engine.observer import Log
from securefl.engine.server import ServerParty
from securefl.mechanisms.charges import charge_of
from securefl.storage.own_record import OwnRecord

SILENT: Final = "It did not answer, or not in time."


class RemoteEngine:
    """Runs the cohort queries of one session with remote parties, over `exchange`.

        >>> import tempfile, securefl
        >>> from pathlib import Path
        >>> from securefl.deployment import RemoteEngine, LocalDeployment, Updates, send
        >>> from securefl.deployment.messages import Enter
        >>> from securefl.engine.server import ServerParty
        >>> plan, own = securefl.Plan(delta=1e-5, non_private=("update",), max_rounds=1), Updates()
        >>> d = Path(tempfile.mkdtemp())
        >>> with LocalDeployment(plan, own, clients=2, folder=d) as house:
        ...     pinned, record = house.server.pinned, house.server.record
        ...     enter = Enter.of(plan, "demo", own.digest, pinned, bytes(32), record.enrolled)
        ...     reach = lambda sent: {n: send(house.where(n), data, timeout=9) for n, data in sent.items()}
        ...     engine = RemoteEngine(
        ...         ServerParty(plan, own.spec(), record, clients=2), record,
        ...         securefl.Ledger(":memory:", plan.terms()), plan=plan, contributions=own.spec(),
        ...         pinned=pinned,
        ...         enter=enter, exchange=reach,
        ...     )
        ...     engine.kept
        {}

    Args:
        server: of the session's plan, with the keys in the roster.
        record: the server's own.
        books: the server's ledger. It holds the clients' charges as reservations, since no client's ledger is
            on this machine. It may overstate a client's spending, but never understates it.
        contributions: the specs of the values that clients may be asked for, by name.
        pinned: the server's roster.
        enter: the request with which parties enter.
        exchange: gives parties requests, and returns the replies that came in time.
        patience: how `away` waits for parties.

    Before each round, parties that have not entered or fell silent are asked to enter. Until they have, they
    get no other request.

    Raises:
        ConfigError: the roster has other keys of the server than `record`, or `record` has no lasting keys.
    """

    def __init__(
        self,
        server: ServerParty,
        record: OwnRecord,
        books: Ledger,
        *,
        plan: Plan,
        contributions: Mapping[str, ValueSpec],
        pinned: PinnedRoster,
        enter: Enter,
        exchange: SendAndReceive,
        patience: Patience = AT_ONCE,
    ) -> None:
        self.server = server
        self._record, self._books, self._plan, self._contributions = record, books, plan, contributions
        self._clients = pinned.clients
        names = [*pinned.clients, *({KEY_HOLDER} & set(pinned.members))]
        session = pinned.session(plan, enter.nonce)
        self._exchange = exchange
        self._visits = Visits(exchange, enter, session, lasting_keys(record))
        self._gathering = Gathering(self._visits, names, patience)
        self._round = self._gathered = 0
        server.enter(pinned.directory(session))

    @property
    def kept(self) -> Mapping[int, ClientState]:
        """Empty: client states are on the clients' own machines."""
        return {}

    def away(self, number: int) -> frozenset[int]:
        """Let parties enter, and wait until round `number` can begin. Returns the clients that are away.

        Raises TooFewParties if too few parties are present at the deadline.
        """
        server = self.server
        resting = server.account.retired(number) | server.proven_cheaters
        self._gathering.gather(number, server.fewest, set(map(client_name, resting)))
        self._gathered = number
        return frozenset(k for k, name in enumerate(self._clients) if name not in self._gathering.here)

    def query(
        self, query: CohortQuery, header: Header, network: Network | None = None
    ) -> tuple[Answers, Log]:
        """Run one cohort query. Errors as for `ServerParty.query`."""
        log = Log()
        if header.round > self._round:
            self._begin(header, log)
        counted = len(self.server.account.new)
        waves = RemoteTransport(self._exchange, self._visits)
        answers = self.server.query(query, header, waves)
        self._note(header, self.server.account.new[counted:])
        log.add(self.server.log.take())
        log.traffic.add(waves.traffic)
        seen, absent = self.server.seen, self._gathering.absent
        self.server.seen = replace(seen.outside(absent), asked=seen.asked | set(absent))
        for name in waves.silent:
            log.report(name, SILENT)
        self._visits.leave({*waves.silent, *waves.traffic.rejected_from})
        return answers, log

    def _begin(self, header: Header, log: Log) -> None:
        """Begin a round with the parties that are in the session."""
        if header.round > self._gathered:
            self._gathering.ask()
        # Recorded before any message of the round, so that a restarted run knows that the round began.
        self._record.secret(header.session, header.round)
        self._round = header.round
        log.traffic.rejected_from |= self._gathering.rejected_from
        for name, why in self._gathering.absent.items():
            if why is Absence.SILENT:
                log.report(name, SILENT)

    def _note(self, header: Header, asked: Sequence[Asked]) -> None:
        """Reserve the charges of these queries in the server's ledger."""
        wants = [
            (
                ReleaseKey(client_name(k), header.session, header.round, header.stage, number, name),
                charge_of(self._plan, self._contributions[name], trained=not initial),
            )
            for number, (name, initial, clients) in enumerate(asked)
            for k in dict.fromkeys(clients)
        ]
        if wants:
            self._books.reserve(wants)
