"""A lying server has one value computed under one order, and summed under another that all clients sign.

A client computes a value once for a query, and keeps it for all attempts. The server orders a dead model
first and lets all clients but its victim send their masked inputs; no one signs, and the attempt is
dropped. Then it sends another order at a later attempt of the same stage: an honest model, equal for all.
The others mask the value that they kept, of the dead model, under the agreement of the honest one; the
victim computes its own. Breaks the rule (PROOF.md): what a client adds is a function of records, of what
all signers agreed on, and draws.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import lying_sessions as sessions
from support import party_folders
from support.every import every
from support.lying_queries import EVERYBODY, FIRST_LAYER, VICTIM, Parties, dead

from securefl.core.machine import Step
from securefl.core.messages import client_name, task
from securefl.core.release import KEY_HOLDER
from securefl.engine import server as engine
from securefl.engine.exchange.server import broadcast_of, order_of
from securefl.engine.party import contributing
from securefl.protocols.fedavg import FedAvg
from securefl.secagg.messages import Dealt, Survivors

NAME = client_name(VICTIM)


class Mute:
    """A server's machine that asks nobody to sign, no key holder to open, and the victim for no value."""

    def __init__(self, machine: Any, victim: str) -> None:
        self._machine, self._victim = machine, victim

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._machine, name)
        moves = name in ("begin", "receive", "provide", "deadline")
        return (lambda *of: self._cut(own(*of))) if moves else own

    def _cut(self, step: Step[Any]) -> Step[Any]:
        out = []
        for one in step.out:
            if isinstance(one.message, Survivors) or KEY_HOLDER in one.to:
                continue
            # Of the shares a client computes its value.
            to = [name for name in one.to if not (isinstance(one.message, Dealt) and name == self._victim)]
            if to:
                out.append(replace(one, to=tuple(to)))
        return replace(step, out=tuple(out))


class Deaf:
    """A transport that brings no call to the victim."""

    def __init__(self, transport: Any, victim: str) -> None:
        self._transport, self._victim = transport, victim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def call(self, to: Any, data: bytes) -> Any:
        return self._transport.call([name for name in to if name != self._victim], data)


def _lie(self: Any, query: Any, header: Any, transport: Any, scores: Any, victim: str) -> Any:
    """In place of `ServerParty._hidden`."""
    first = replace(query, broadcast=dead(query.broadcast))
    self._exchange(first, header, transport, scores, hidden=True)
    order = order_of(first)
    told, header = task(header, order, broadcast_of(first)), engine._next(header)
    deaf = Deaf(transport, victim) if self._plan.sum == "two-server" else transport
    machine = self._machine(first, header, sorted(query.cohort), order, told, deaf)
    self._run(Mute(machine, victim), header, transport)
    header = engine._next(header)
    self._exchange(query, header, transport, scores, hidden=True)
    order = order_of(query)
    told = task(header, order, broadcast_of(query))
    found, _, _ = self._attempts(query, header, order, told, transport)
    return found or engine.no_answers(query)


def require_unread(total: Any, own: Any) -> None:
    """The total does not stand for the victim's value."""
    error, most = (float(np.abs(one[FIRST_LAYER]).max()) for one in (total - own, own))
    assert error > 0.1 * most, f"read to {error:.2g} of {most:.2g}"


@every("how", ["masked", "two-server"])
def test_a_value_kept_for_one_order_is_in_no_sum_of_another(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lying(self: Any, query: Any, header: Any, transport: Any, scores: Any) -> Any:
        return _lie(self, query, header, transport, scores, NAME)

    monkeypatch.setattr(engine.ServerParty, "_hidden", lying)
    options = FedAvg(fraction=1.0, aggregation="partial")
    parties = Parties(options, how, dropout=0.0, max_retries=0, min_cohort_size=6)
    answers = parties.ask(1, EVERYBODY, parties.algorithm.start().broadcast)
    if answers.survivors:
        require_unread(parties.total(answers), parties.own[VICTIM][-1])


def test_nor_between_parties_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of six clients with keys, ledgers, journals and draws of their own."""
    seen, protect = list[Any](), contributing.protect

    def noting(protection: Any, value: Any, *, key: Any, **more: Any) -> Any:
        if key.holder == f"client-{sessions.VICTIM:04d}":
            seen.append(np.array(value.clear))
        return protect(protection, value, key=key, **more)

    def lying(self: Any, query: Any, header: Any, transport: Any, scores: Any) -> Any:
        return _lie(self, query, header, transport, scores, f"client-{sessions.VICTIM:04d}")

    study = sessions.STUDY
    monkeypatch.setattr(contributing, "protect", noting)
    monkeypatch.setattr(engine.ServerParty, "_hidden", lying)
    party_folders.build_once(monkeypatch)
    party_folders.enrolled(tmp_path, study)
    with closing(sessions.Place(tmp_path, study)) as place:
        total = place.begin().total(sessions.EVERYBODY)
    if total is not None:
        require_unread(total, seen[-1])
