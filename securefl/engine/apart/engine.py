"""A server whose clients and key holder live apart: it runs Asks as the embedded engine does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from securefl.accounting.ledger import Ledger
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, ClientState, CohortQuery, ValueSpec
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, ReleaseKey
from securefl.core.wire import Header
from securefl.engine.account import Asked
from securefl.engine.apart.entering import Enter, enter_all
from securefl.engine.apart.remote_transport import RemoteTransport, SendAndReceive
from securefl.engine.apart.roster import Pinned
from securefl.engine.network import Network
from securefl.engine.observer import Log
from securefl.engine.server import ServerParty
from securefl.mechanisms.charges import charge_of
from securefl.storage.own_record import OwnRecord

SILENT: Final = "It did not answer, or not in time."


class RemoteEngine:
    """The Asks of one session, over `exchange`.

    Args:
        server: of the session's plan, with keys that the roster has.
        record: the server's own.
        books: the server's ledger. It holds what clients were asked for, as reservations: no client's ledger
            is on this machine. What a client has spent it may overstate, never understate.
        offers: by name, what clients may be asked for.
        pinned: the server's roster.
        enter: the request with which parties enter.
        exchange: gives parties requests, and returns the replies in time.

    A party that has not entered, or fell silent, is asked to enter before the next round, and for nothing
    else until it has.
    """

    def __init__(
        self,
        server: ServerParty,
        record: OwnRecord,
        books: Ledger,
        *,
        plan: Plan,
        contributions: Mapping[str, ValueSpec],
        pinned: Pinned,
        enter: Enter,
        exchange: SendAndReceive,
    ) -> None:
        self.server = server
        self._record, self._books, self._plan, self._contributions = record, books, plan, contributions
        self._names = [*pinned.clients, *({KEY_HOLDER} & set(pinned.members))]
        self._enter, self._exchange = enter, exchange
        self._session = pinned.session(plan, enter.nonce)
        self._here: set[str] = set()
        self._round = 0
        server.enter(pinned.directory(self._session))

    @property
    def kept(self) -> Mapping[int, ClientState]:
        """Nothing: what clients keep is on their own machines."""
        return {}

    def query(
        self, query: CohortQuery, header: Header, network: Network | None = None
    ) -> tuple[Answers, Log]:
        """Run one Ask. Errors as for `ServerParty.query`."""
        log = Log()
        if header.round > self._round:
            self._begin(header, log)
        counted = len(self.server.account.new)
        waves = RemoteTransport(self._asked)
        answers = self.server.query(query, header, waves)
        self._note(header, self.server.account.new[counted:])
        log.add(self.server.log.take())
        log.traffic.add(waves.traffic)
        for name in waves.silent:
            log.tell(name, SILENT)
        self._here -= {*waves.silent, *waves.traffic.rejected_from}
        return answers, log

    def _begin(self, header: Header, log: Log) -> None:
        """A round begins: whoever is left out is asked to enter, again perhaps."""
        # On record before anybody hears of the round: a run that is started again knows that it began.
        self._record.secret(header.session, header.round)
        self._round = header.round
        out = [name for name in self._names if name not in self._here]
        if out:
            entered, rejected_from = enter_all(self._exchange, self._enter, out)
            self._here |= set(entered)
            log.traffic.rejected_from |= rejected_from
            for name in set(out) - set(entered) - set(rejected_from):
                log.tell(name, SILENT)

    def _asked(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """The replies of whoever has entered. The others would cost each wave its deadline."""
        here = {name: data for name, data in requests.items() if name in self._here}
        return self._exchange(here) if here else {}

    def _note(self, header: Header, asked: Sequence[Asked]) -> None:
        """Write what clients were asked for into the books."""
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
