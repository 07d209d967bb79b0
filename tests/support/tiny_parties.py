"""All parties of a session with their lasting keys, pinned in one directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from securefl.algorithm.queries import CohortQuery
from securefl.core.agreement import Directory, Identity
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header
from securefl.engine.exchange.server import cohort_of, order_of
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord, PartyKeys
from securefl.sums.scheme import Attempt, SumScheme


@dataclass(frozen=True)
class Session:
    """What each party of a session has."""

    directory: Directory
    server: PartyKeys
    key_holder: PartyKeys
    identities: Mapping[str, Identity]


def session(clients: Iterable[int], of: bytes = bytes(32), journal: Journal | None = None) -> Session:
    """A session of these clients, a server and a key holder, in one journal."""
    journal = journal or Journal()
    names = sorted(map(client_name, clients))
    everybody = [*names, SERVER, KEY_HOLDER]
    secrets = journal.lasting(everybody, of)
    own = {name: Identity.of(name, secret) for name, secret in zip(everybody, secrets, strict=True)}
    directory = Directory(
        of, own[SERVER].member(), own[KEY_HOLDER].member(), lambda some: [own[name].member() for name in some]
    )
    server, holder = (
        PartyKeys(own[name], OwnRecord(name, journal), directory) for name in (SERVER, KEY_HOLDER)
    )
    return Session(directory, server, holder, {name: own[name] for name in names})


def attempt(query: CohortQuery, cohort: Sequence[int], header: Header, task: bytes = bytes(32)) -> Attempt:
    """An attempt at the sums of an Ask, over some of its cohort."""
    return Attempt.of(
        order_of(query), cohort_of(query), header=header, sums=query.sums, called=cohort, task=task
    )


def machines(way: SumScheme, one: Attempt, parties: Session) -> dict[str, Any]:
    """Every party's machine of an attempt, each made by its own side."""
    holder, key = way.key_holder(parties.key_holder), b""
    found: dict[str, Any] = {}
    if holder is not None:
        found[KEY_HOLDER], key = holder.machine(one)
    found[SERVER] = way.server(parties.server).machine(one, key)
    own = [parties.identities[name] for name in one.cohort]
    return {**found, **way.clients(parties.directory).machines(one, own, key)}
