"""The server's side of one session with remote parties: it lets them enter, and runs queries in rounds."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery, ValueSpec
from securefl.core.logs import logger
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header
from securefl.deployment.messages import Enter
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.transport import RemoteTransport
from securefl.deployment.visits import SendAndReceive, Visits, lasting_keys
from securefl.engine.attendance import Absence, Attendance, Presence, Seen
from securefl.engine.server import ServerParty
from securefl.storage.own_record import OwnRecord

_log = logger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServerSide:
    """The server's own data: its copy of the plan, its pinned roster, its record and keys.

    study: the name that the owners of parties read in their diaries.
    """

    plan: Plan
    pinned: PinnedRoster
    record: OwnRecord
    study: str = "Flower"


class ServerSession:
    """A new session of the server with remote parties.

    Args:
        own: of this server.
        spec: the specs of the values that clients may be asked for, by name.
        work: digest of the parties' computation, 32 bytes (see `messages.Enter`).
        exchange: reaches the parties.
        nonce: 32 bytes that no session had before; by default from the operating system.

    Raises ConfigError if `own` does not have the lasting keys in the roster, or has none.
    """

    def __init__(
        self,
        own: ServerSide,
        spec: Mapping[str, ValueSpec],
        work: bytes,
        exchange: SendAndReceive,
        *,
        nonce: bytes | None = None,
    ) -> None:
        keys = lasting_keys(own.record)
        nonce = secrets.token_bytes(32) if nonce is None else nonce
        enter = Enter.of(own.plan, own.study, work, own.pinned, nonce, keys)
        self._session = own.pinned.session(own.plan, nonce)
        self._exchange = exchange
        self._visits = Visits(exchange, enter, self._session, keys)
        self._attendance = Attendance()
        self._round, self._seen = 0, list[Seen]()
        self._parties = frozenset(own.pinned.members) - {SERVER}
        self._outside: dict[str, Absence] = {}
        self.server = ServerParty(own.plan, spec, own.record, clients=len(own.pinned.clients))
        self.server.enter(own.pinned.directory(self._session))

    def admit(self) -> None:
        """Ask the parties outside the session to enter. A party that refuses is left out, with a warning."""
        self._outside = {}
        if not self.missing:
            return
        out = sorted(self.missing)
        entered, rejected_from = self._visits.enter(out)
        self._outside = {
            name: Absence.REFUSED if name in rejected_from else Absence.SILENT
            for name in set(out) - set(entered)
        }
        for name, why in rejected_from.items():
            _log.warning("%s does not take part: %s", name, why)

    @property
    def missing(self) -> frozenset[str]:
        """The parties that have not entered, or fell silent since."""
        return frozenset(name for name in self._parties if name not in self._visits)

    def attended(self, number: int, chosen: Iterable[int] = ()) -> Presence:
        """Who took part in round `number`, by all its queries so far. Call it at the end of each round.

        chosen: the clients that the round was meant for, also those that no query asked since they are
            outside the session or over budget. Rounds come in order.
        """
        if number != self._round:  # no query was made in it
            self._round, self._seen = number, []
        retired = set(map(client_name, self.server.account.retired(number)))
        seen = Seen.together(self._seen).outside(self._outside)
        meant = set(map(client_name, chosen)) & set(self._outside)
        return self._attendance.round(
            number, replace(seen, asked=seen.asked | meant), over_budget=retired - seen.asked
        )

    def _note(self, number: int, seen: Seen) -> None:
        if number != self._round:
            self._round, self._seen = number, []
        self._seen.append(seen)

    def query(self, query: CohortQuery, *, number: int, stage: int = 0) -> Answers:
        """Run one cohort query in the round of this number, at this stage of it."""
        header = Header(session=self._session, round=number, stage=stage, attempt=0)
        answers = self.server.query(query, header, RemoteTransport(self._exchange, self._visits))
        self._note(number, self.server.seen)
        # A silent party may have been restarted, so it is asked to enter before the next round.
        self._visits.leave(client_name(k) for k in set(query.cohort) - set(answers.survivors))
        if not answers.survivors:
            self._visits.leave([KEY_HOLDER])
        return answers
