"""A party whose updates a relay's app computes outside it, with its files in one folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState
from securefl.core.agreement import Identity
from securefl.core.logs import logger
from securefl.core.release import KEY_HOLDER
from securefl.deployment.computing import Outside
from securefl.deployment.files import Count, held
from securefl.deployment.plan_file import USUAL_SESSIONS
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.server import Relay, Served
from securefl.deployment.session_cap import by_keyword
from securefl.deployment.session_store import there
from securefl.deployment.updates import Updates
from securefl.engine.party import Party
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.engine.privacy_card import not_held
from securefl.storage.counter import Counter
from securefl.storage.own_record import OwnRecord

_log = logger(__name__)
# The app has the records, not the party. Empty arrays would mean a client without records.
_ELSEWHERE = (np.zeros((1, 0)), np.zeros(1))


class UpdateParty:
    """One client whose updates are computed outside it, or the key holder, with its files in one folder.

        >>> import tempfile
        >>> from contextlib import closing
        >>> from pathlib import Path
        >>> from securefl import Plan
        >>> from securefl.deployment import PinnedRoster, UpdateParty, Updates
        >>> from securefl.sums import Identity
        >>> own = {name: Identity.generate(name) for name in ("server", "client-0000")}
        >>> roster = PinnedRoster({name: keys.member() for name, keys in own.items()})
        >>> plan, d = Plan(delta=1e-5, non_private=("update",), max_rounds=1), Path(tempfile.mkdtemp())
        >>> args = ("client-0000", plan, Updates(), roster, own["client-0000"], d / "folder", d / "counter")
        >>> with closing(UpdateParty(*args)) as party:
        ...     party.answer(None, b"no frame") == party.answer(None, b"another")  # every refusal is the same
        True

    Args:
        name: the party's. A client's number is the place of its name in the roster.
        plan: its own copy, which also sets the noise.
        updates: the values that it may be asked for.
        pinned: its own roster.
        identity: its lasting keys.
        folder: of the file with its ledger, journal and diary. It is created if it does not exist.
        counter: a folder outside that one, and outside its backups, that stores the party's progress.
        sessions: how many sessions without noise its owner agrees to, over the whole life of the folder (see
            `session_cap`).
        patience: seconds that an app may compute for. All other requests wait meanwhile. No other connection
            can end the computation, because a client that is made to fail is missing from a sum.
        warn: whether the log says that state of the app is not held; a simulation says it for all clients.

    Raises:
        ConfigError: the updates can never be released under the plan, `sessions` is below 1, another process
            holds the folder or the counter, or the counter is lost.
        DataError: the folder is an older copy.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        updates: Updates,
        pinned: PinnedRoster,
        identity: Identity,
        folder: Path,
        counter: Path,
        *,
        sessions: int = USUAL_SESSIONS,
        patience: float = 3600.0,
        warn: bool = True,
    ) -> None:
        updates.check(plan)
        if warn and name != KEY_HOLDER:
            warn_of_state(plan, updates, name)
        self._name, self._plan, self._updates, self._identity = name, plan, updates, identity
        self._patience = patience
        self._clients = pinned.clients
        terms = None if name == KEY_HOLDER else plan.terms()
        with ExitStack() as stack:
            self.files = stack.enter_context(
                held(name, folder, Counter(counter), terms, new=not there(folder))
            )
            self.outside = Outside(self.files.diary.miss)
            self.resident = self.files.session(
                plan,
                updates.digest,
                pinned,
                updates.spec(plan),
                self._made,
                allowed=sessions,
                how=by_keyword(sessions),
            )
            self._open = stack.pop_all()

    def _made(self, count: Count, session: bytes, kept: Mapping[int, ClientState]) -> Party:
        if self.files.ledger is None:
            record = OwnRecord(KEY_HOLDER, self.files.journal, self._identity)
            return KeyHolderParty(self._plan, self._updates.spec(self._plan), record)
        return ClientParty(
            self._plan,
            self._updates.contributions(self._plan, self.outside),
            self.files.ledger,
            self.files.journal,
            {self._clients.index(self._name): _ELSEWHERE},
            rng=lambda number, who, query: np.random.default_rng(0),
            kept=kept,
            enrolled={self._name: self._identity},
            count_session=count,
        )

    def answer(self, relay: Relay, request: bytes) -> bytes:
        """The reply to a request that this relay brought. The relay gets orders to compute."""
        with self.outside.at(lambda order: relay.query(order, seconds=self._patience)):
            return self.resident.answer(request)

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Served:
        return Served(self.answer, self.files.diary.refuse)

    def __exit__(self, *_: object) -> None:
        self.close()


def warn_of_state(plan: Plan, updates: Updates, whose: str) -> None:
    """Log what is not held of these updates if the app keeps state. whose: the parties that it names."""
    if loose := not_held(plan, [*updates.spec(plan).values()]):
        _log.warning("%s: %s", whose, loose)
