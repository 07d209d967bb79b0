"""The engine of a deployment: it runs a server's cohort queries with parties on other machines.

One class serves a study's queries and the updates of an app of one's own. A study waits for its parties
(`away`), and an app asks them to enter (`enter`). Both then query and book on one path.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, ClientState, CohortQuery, ValueSpec
from securefl.core.agreement import fields
from securefl.core.errors import ConfigError
from securefl.core.logs import logger
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER
from securefl.core.wire import Header
from securefl.deployment.gathering import AT_ONCE, Gathering, Patience
from securefl.deployment.messages import Enter
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.transport import RemoteTransport, SendAndReceive
from securefl.engine.attendance import Absence, Attendance, Presence, Seen
from securefl.engine.network import Network
from securefl.engine.observer import Log
from securefl.engine.server import ServerParty
from securefl.storage.own_record import OwnRecord

SILENT: Final = "It did not answer, or not in time."
CUT_OFF: Final = "its orders had left before the server was stopped, and parties take none twice"
_log = logger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServerSide:
    """The server's own data: its copy of the plan, its pinned roster, its record and keys. Raises nothing.

        >>> import securefl
        >>> from securefl.deployment import PinnedRoster, ServerSide
        >>> from securefl.storage.journal import Journal
        >>> from securefl.storage.own_record import OwnRecord
        >>> from securefl.sums import Identity
        >>> keys = {name: Identity.generate(name) for name in ("server", "client-0000")}
        >>> pinned = PinnedRoster({name: own.member() for name, own in keys.items()})
        >>> record = OwnRecord("server", Journal(), keys["server"])
        >>> ServerSide(plan=securefl.Plan(delta=1e-5, max_rounds=1), pinned=pinned, record=record).study
        'Flower'

    Attributes:
        plan, pinned: every party has the same.
        record: of the server's acts, with its lasting keys, as the roster lists them.
        study: the name that the owners of parties read in their diaries.
    """

    plan: Plan
    pinned: PinnedRoster
    record: OwnRecord
    study: str = "Flower"


class RemoteEngine:
    """Runs the cohort queries of one session with remote parties, over `exchange`.

        >>> import tempfile, securefl
        >>> from pathlib import Path
        >>> from securefl.deployment import LocalDeployment, RemoteEngine, SocketExchange, Updates
        >>> plan, own = securefl.Plan(delta=1e-5, non_private=("update",), max_rounds=1), Updates()
        >>> d = Path(tempfile.mkdtemp())
        >>> with LocalDeployment(plan, own, clients=2, folder=d) as house:
        ...     paths = {name: house.where(name) for name in house.pinned.clients}
        ...     exchange = SocketExchange(paths, deadline=9.0)
        ...     engine = RemoteEngine(house.server, own.spec(plan), own.digest, exchange)
        ...     engine.enter()
        ...     sorted(engine.missing)
        []

    Args:
        side: of this server.
        contributions: the specs of the values that clients may be asked for, by name.
        work: digest of the parties' computation, 32 bytes (see `messages.Enter`).
        exchange: gives parties requests, and returns the replies that came in time (`SendAndReceive`).
        server: of the same plan, such as one that goes on with a run; by default a new one.
        nonce: 32 bytes that no session had before; by default from the operating system.
        patience: how `away` waits for parties.

    Before each round, parties that have not entered or fell silent are asked to enter. Until they have, they
    get no other request.

    Raises:
        ConfigError: the roster has other keys of the server than `side.record`, or that has no lasting keys.
    """

    def __init__(
        self,
        side: ServerSide,
        contributions: Mapping[str, ValueSpec],
        work: bytes,
        exchange: SendAndReceive,
        *,
        server: ServerParty | None = None,
        nonce: bytes | None = None,
        patience: Patience = AT_ONCE,
    ) -> None:
        if (keys := side.record.enrolled) is None:
            raise ConfigError("Expected the server's enrolled keys in its record, got none. Enrol it.")
        pinned = side.pinned
        nonce = secrets.token_bytes(32) if nonce is None else nonce
        request = Enter.of(side.plan, side.study, work, pinned, nonce, keys)
        self._plan, self._record = side.plan, side.record
        self._clients = pinned.clients
        self.session = pinned.session(side.plan, nonce)
        names = [*pinned.clients, *({KEY_HOLDER} & set(pinned.members))]
        self._transport = RemoteTransport(exchange, request, self.session, keys)
        self._gathering = Gathering(self._transport, names, patience)
        self._asked_to_enter = False
        self._round, self._seen, self._attendance = 0, list[Seen](), Attendance()
        self.server = server or ServerParty(
            side.plan, contributions, side.record, clients=len(pinned.clients)
        )
        self.server.enter(pinned.directory(self.session))

    @property
    def kept(self) -> Mapping[int, ClientState]:
        """Empty: client states are on the clients' own machines."""
        return {}

    # Entering -----------------------------------------------------------------------------------------

    @property
    def missing(self) -> frozenset[str]:
        """The parties that have not entered, or fell silent since."""
        return self._gathering.names - self._gathering.here

    def enter(self) -> None:
        """Ask the parties outside the session to enter, once. Logs a warning for one that refuses."""
        self._gathering.ask()
        self._asked_to_enter = True
        for name, why in self._gathering.rejected_from.items():
            _log.warning("%s does not take part: %s", name, why)

    def away(self, number: int) -> frozenset[int]:
        """Let parties enter, and wait until round `number` can begin. Returns the clients that are away.

        Raises TooFewParties if too few parties are present at the deadline.
        """
        server = self.server
        account = server.account
        resting = account.retired(number) | account.resting(number) | server.proven_cheaters
        self._gathering.gather(number, server.fewest, set(map(client_name, resting)))
        self._asked_to_enter = True
        return frozenset(k for k, name in enumerate(self._clients) if name in self.missing)

    # Querying -----------------------------------------------------------------------------------------

    def at(self, number: int, stage: int = 0) -> Header:
        """The place of a query in this session: in round `number`, at this stage of it."""
        return Header(session=self.session, round=number, attempt=0, stage=stage)

    def query(
        self, query: CohortQuery, header: Header, network: Network | None = None
    ) -> tuple[Answers, Log]:
        """Run one cohort query. Errors as for `ServerParty.query`."""
        log = Log()
        if header.round > self._round:
            self._begin(header, log)
        waves = self._transport
        waves.begin()
        asks, server = self._may_ask(query, header), self.server
        answers = server.query(query, header, waves) if asks else server.skip(query, header, CUT_OFF)
        log.add(server.log.take())
        if not asks:
            return answers, log
        log.traffic.add(waves.traffic)
        seen, absent = self.server.seen, self._gathering.absent
        self._seen.append(seen)
        self.server.seen = replace(seen.outside(absent), asked=seen.asked | set(absent))
        for name in waves.silent:
            log.report(name, SILENT)
        waves.leave({*waves.silent, *waves.traffic.rejected_from})
        return answers, log

    def _may_ask(self, query: CohortQuery, header: Header) -> bool:
        """Whether parties would take this order: it is the first of its place, or one that they can repeat.

        A server that was killed in a round asks again. A party takes no order twice, but a further attempt at
        a hidden sum over the same cohort. Everything else would only use up retries and be refused.
        """
        cohort, first = fields(*(client_name(k).encode() for k in query.cohort)), False

        def noted() -> bytes:
            nonlocal first
            first = True
            return cohort

        told = self._record.said(header, f"cohort {header.stage}", noted)
        return first or (self._plan.hidden and bool(query.sums) and told == cohort)

    def _begin(self, header: Header, log: Log) -> None:
        """Begin a round with the parties that are in the session."""
        if not self._asked_to_enter:
            self._gathering.ask()
        self._asked_to_enter = False
        # Recorded before any message of the round, so that a restarted run knows that the round began.
        self._record.secret(header.session, header.round)
        self._round, self._seen = header.round, []
        log.traffic.rejected_from |= self._gathering.rejected_from
        for name, why in self._gathering.absent.items():
            if why is Absence.SILENT:
                log.report(name, SILENT)

    def attended(self, number: int, chosen: Iterable[int] = ()) -> Presence:
        """Who took part in round `number`, by all its queries so far. Call it at the end of each round.

        A study does not call it: its records have what the server saw (`study.attended`).

        chosen: the clients that the round was meant for, also those that no query asked since they are
            outside the session or over budget. Rounds come in order.
        """
        retired = set(map(client_name, self.server.account.retired(number)))
        absent = self._gathering.absent
        seen = Seen.together(self._seen if number == self._round else ()).outside(absent)
        meant = set(map(client_name, chosen)) & set(absent)
        return self._attendance.round(
            number, replace(seen, asked=seen.asked | meant), over_budget=retired - seen.asked
        )
