"""The ledger of a caller's own loop. Its data holders are the caller's ids: texts, whole numbers and tuples.

An id stands in the file as a Python literal, so "1" and 1 are two holders. They look alike to a person, who
may mean one client by both: the second of two such ids is refused, since it would have a second budget.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final
from unicodedata import normalize

import numpy as np

from securefl.accounting.ledger import Ledger
from securefl.accounting.release_table import DeclaredQuery
from securefl.core.errors import BudgetExceeded, ConfigError, DataError, LocalProtocolError
from securefl.core.release import Charge, ReleaseKey
from securefl.core.text_safety import require_distinct, require_legible

Id = str | int | tuple[Any, ...]
"""A client's id in a caller's loop. numpy's texts and whole numbers count as Python's."""
_CLIENT: Final = "client "
"""Begins the name of a holder, so that messages say of whom they are."""


def holder_of(client: object) -> str:
    """The holder of this client's releases. Raises ConfigError for what is no id, and illegible texts."""
    return f"{_CLIENT}{_plain(client)!r}"


def _id_of(holder: str) -> Any:
    return literal_eval(holder.removeprefix(_CLIENT))


def _plain(client: object) -> Id:
    # Of exact types: another one's own `==` could tell two ids apart that the ledger charges as one.
    if type(client) in (str, np.str_):
        client = str(client)
        require_legible(client, "a client's id")
        # Unicode has several forms of one letter, which look alike. Two such ids would have two budgets.
        if not client or normalize("NFKC", client) != client or client != client.strip():
            raise ConfigError(
                f"Expected a client's id in Unicode's form NFKC without spaces around it, got {client!r}."
            )
        return client
    if type(client) is tuple and client:
        return tuple(map(_plain, client))
    if type(client) is int or isinstance(client, np.integer):
        return int(client)
    raise ConfigError(
        f"Expected a client's id as a text, a whole number, or a tuple of these, got {client!r}. Take "
        "str(id)."
    )


class NamedLedger(Ledger):
    """A `Ledger` of a caller's own ids: `epsilon` and `rounds_left` take them, and `rows` has them."""

    _admitted: frozenset[str] = frozenset()

    def admit(self, holders: Iterable[str]) -> None:
        """Raise ConfigError if two of these holders and those in the file look alike.

        Raises DataError for a ledger of other holders, such as a study's.
        """
        query = "SELECT holder FROM releases GROUP BY holder ORDER BY MIN(reserved)"
        known = [row[0] for row in self._db.rows(query)]
        try:
            both = dict.fromkeys([*known, *holders])
            ids = [_id_of(holder) for holder in both]
            foreign = [holder for holder in known if holder_of(_id_of(holder)) != holder]
        except Exception:  # a person can edit the file
            both, ids, foreign = {}, [], known
        if foreign:
            raise DataError(
                f"Expected a ledger of a loop's own clients at {self._db.path}, got one of other holders, "
                "such as of a study or of `securefl reveal`. Name another file."
            )
        require_distinct(ids, "clients' ids in one ledger")
        self._admitted |= both.keys()

    def reserve(
        self,
        wants: Sequence[tuple[ReleaseKey, Charge]],
        asked: Mapping[ReleaseKey, DeclaredQuery] | None = None,
    ) -> Mapping[str, BudgetExceeded]:
        """As `Ledger.reserve`. Raises ConfigError too if a new holder looks like a known one."""
        # In one transaction, so that two processes that begin at once cannot both write one of two such ids.
        with self._db.together(lambda: None):
            self.admit({key.holder for key, _ in wants if not self._filed.counted(key.holder)})
            return super().reserve(wants, asked)

    def _known(self, client: Id) -> str:
        """The holder. Raises LocalProtocolError for one that has no part in the ledger, such as a typo."""
        holder, known = holder_of(client), self._admitted
        if holder not in known and not self._filed.counted(holder):
            near = get_close_matches(holder, known) or sorted(known)[:3]
            raise LocalProtocolError(
                f"Expected a client of this ledger, such as {', '.join(near) or 'none yet'}, got {holder}."
            )
        return holder

    def epsilon(self, holder: Id, party: str) -> float:
        return super().epsilon(self._known(holder), party)

    def rounds_left(self, holder: Id, round_: Sequence[Charge], *, most: int = 10_000) -> int:
        return super().rounds_left(self._known(holder), round_, most=most)

    def rows(self) -> list[tuple[Any, ...]]:
        return [(_id_of(holder), *rest) for holder, *rest in super().rows()]
