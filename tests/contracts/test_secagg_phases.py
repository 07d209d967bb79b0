"""The machines of secure aggregation make the transitions of `secagg/phases.py`, and no others.

SPEC.md shows the same tables. Run as a program, this prints them for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from support.every import every
from support.tiny_secagg import aggregate, agreement, client, identity

from securefl.core.acts import RecordAct
from securefl.core.agreement import u32
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import SecretKey, Share
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.engine.network import Faults
from securefl.secagg import Aborted, Agreement, Channels, Server, Summed, phases
from securefl.secagg.client_rounds import ClientState, Finished
from securefl.secagg.messages import Complaint, MaskedInput
from securefl.secagg.phases import BEGIN, DEADLINE, Row
from securefl.secagg.server_rounds import ServerState, Summing, Working

CLIENTS = 5  # four survive and one is corrupt
ROWS = {"client": phases.CLIENT.rows, "server": phases.SERVER.rows}
ORDER = {"client": get_args(ClientState), "server": get_args(ServerState)}


class Transition(NamedTuple):
    party: str
    state: type | None
    event: Any
    follows: type | None
    before: type | None
    spec: type | None
    asks: Any
    result: str | None


def transitions(party: str, row: Row) -> Iterator[Transition]:
    spec = row.spec[0] if row.spec else None
    for state, event in product(row.states, row.events):
        yield Transition(party, state, event, row.follows, row.before, spec, row.asks, row.result)


TABLE = [(one, row) for party, rows in ROWS.items() for row in rows for one in transitions(party, row)]


def name_of(result: Any) -> str | None:
    """The table's word for a result."""
    match result:
        case Summed():
            return "summed"
        case Aborted(culprit=culprit):
            return "named" if culprit else "aborted"
    return result  # type: ignore[no-any-return]


def asked_by(order: Any) -> Any:
    return order.act if isinstance(order, RecordAct) else type(order)


@dataclass(frozen=True)
class Moment:
    """A state that was reached, what the host was asked for, whose messages had come, if it had ended."""

    state: Any
    asked: Any
    came: dict[type, frozenset[str]]
    ended: bool


@dataclass
class Watched:
    """A machine whose every step is noted; `at` a moment of another one, it goes on from there."""

    party: str
    inner: Any
    at: Moment | None = None
    steps: list[Transition] = field(default_factory=list)
    quiet: list[Transition] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    told: list[tuple[Transition, frozenset[str], dict[type, frozenset[str]]]] = field(default_factory=list)
    got: list[tuple[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._asked = self.at.asked if self.at else None
        self._came = self.at.came if self.at else {}
        self._ended = self.at is not None and self.at.ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def begin(self) -> Any:
        return self._noted(None, BEGIN, self.inner.begin())

    def receive(self, state: Any, sender: str, message: Any) -> Any:
        step = self.inner.receive(state, sender, message)
        self.got.append((sender, message))
        if step.state is not state:
            kind = type(message)
            self._came = {**self._came, kind: self._came.get(kind, frozenset()) | {sender}}
        return self._noted(state, type(message), step)

    def provide(self, state: Any, answer: Any) -> Any:
        asked, self._asked = self._asked, None
        return self._noted(state, asked, self.inner.provide(state, answer))

    def deadline(self, state: Any) -> Any:
        return self._noted(state, DEADLINE, self.inner.deadline(state))

    def _noted(self, state: Any, event: Any, step: Any) -> Any:
        if step.need is not None:
            self._asked = asked_by(step.need.order)
        *early, kind = dict.fromkeys(type(envelope.message) for envelope in step.out) or (None,)
        assert len(early) <= 1
        before, after = None if state is None else type(state), type(step.state)
        stays = step.state is state or (event == DEADLINE and before is after)
        made = Transition(
            party=self.party,
            state=before,
            event=event,
            follows=None if stays else after,
            before=early[0] if early else None,
            spec=kind,
            asks=None if step.need is None else self._asked,
            result=name_of(step.result),
        )
        if step.state is state:  # then nothing is said, asked for or ended either
            assert (step.out, step.need, step.result) == ((), None, None)
            self.quiet.append(made)
            return step
        assert not self._ended, "a result is given once, and nothing moves after it"
        self._ended = step.result is not None
        self.steps.append(made)
        self.moments.append(Moment(step.state, self._asked, self._came, self._ended))
        if step.out:
            for sent in filter(None, (*early, kind)):
                to = frozenset(n for one in step.out if type(one.message) is sent for n in one.to)
                self.told.append((made, to, self._came))
        return step


def watched(agreed: Agreement, others: dict[int, Any] | None = None, **network: Any) -> list[Watched]:
    """All parties of one aggregation through the engine; the server is the last."""
    machines = {client_name(k): client(k, agreed) for k in range(CLIENTS)}
    machines |= {client_name(k): machine for k, machine in (others or {}).items()}
    parties = {name: Watched("client", machine) for name, machine in machines.items()}
    parties[SERVER] = Watched("server", Server(agreement=agreed))
    aggregate(agreed, machines=parties, **network)
    return list(parties.values())


def on_from(moment: Moment, party: Watched, **changes: Any) -> Watched:
    return Watched(party.party, replace(party.inner, **changes), at=moment)


def deadlines(party: Watched) -> Iterator[Watched]:
    """From every state that was reached: a deadline that is let pass, and one that is not."""
    for moment, patience in product(party.moments, (0, 1)):
        waiting = on_from(moment, party, patience=patience)
        waiting.deadline(moment.state)
        yield waiting


def refusals(party: Watched) -> Iterator[Watched]:
    """Wherever the host was asked for something: it refuses, or comes too late."""
    for moment in party.moments:
        if moment.asked is not None:
            refusing = on_from(moment, party)
            culprit = Aborted(phase="unmask", reason="", culprit=client_name(1))
            refusing.provide(moment.state, culprit if isinstance(moment.state, Working) else None)
            yield refusing
            if party.party == "client":
                late = on_from(moment, party)
                late.provide(Finished(), None)
                yield late


def complaint(dealer: int) -> Complaint:
    """It accuses a dealer, and shows a key that opens nothing."""
    return Complaint(keys=(Share(u32(dealer) + bytes(32)),))


def inputs_and_complaints(server: Watched) -> Iterator[Watched]:
    """Every client sends its input or complains, in all combinations: of one dealer, or of one each."""
    first = next(moment for moment in server.moments if isinstance(moment.state, Summing))
    inputs = [(sender, message) for sender, message in server.got if isinstance(message, MaskedInput)]
    for complains, of_one in product(product((False, True), repeat=CLIENTS), (False, True)):
        summing = on_from(first, server)
        state = first.state
        for (sender, message), complaining in zip(inputs, complains, strict=True):
            if isinstance(state, Summing):
                next_one = (server.agreement.roster.numbers[sender] + 1) % CLIENTS
                accused = 0 if of_one and sender != client_name(0) else next_one
                state = summing.receive(state, sender, complaint(accused) if complaining else message).state
        yield summing


def silent(kind: bytes, number: int) -> Any:
    """What this client says of this kind does not arrive."""
    return lambda sender, to, data: b"" if sender == client_name(number) and kind in data[:40] else data


def wrong_box() -> Any:
    """A dealer whose box for client 0 is sealed under a key that client 0 does not have."""
    agreed = agreement(CLIENTS)
    channels = Channels(identity(3), agreed.roster, agreed.header.session)
    channels._secrets[0] = SecretKey(bytes(32))
    return replace(client(3, agreed), channels=channels)


@pytest.fixture(scope="module")
def runs() -> list[Watched]:
    """Honest runs in both modes, complaints, a bad box, doubled messages, an abstention, too few answers or
    neighbours.

    And from every state that was reached in one of them: deadlines, and a host that refuses.
    """
    found: list[Watched] = []
    for mode in ("active", "semi-honest"):
        honest = watched(agreement(CLIENTS, mode=mode))
        found += [*honest, *inputs_and_complaints(honest[-1])]
    found += watched(agreement(CLIENTS), {3: wrong_box()})
    found += watched(agreement(CLIENTS), faults=Faults(duplicate=1.0))
    found += watched(agreement(CLIENTS), abstaining=frozenset({client_name(2)}))
    everybody = agreement(CLIENTS, dropout=0.0).parameters
    strict = agreement(CLIENTS, chosen=replace(everybody, threshold=CLIENTS))
    found += watched(strict, tamper=silent(b"secagg-consistent", 2))
    lonely = replace(everybody, neighbours=2, threshold=2, least_degree=3)
    found += watched(agreement(CLIENTS, chosen=lonely))
    return [*found, *(one for run in found for walk in (deadlines, refusals) for one in walk(run))]


def test_no_two_rows_say_the_same() -> None:
    made = [transition for transition, _ in TABLE]
    assert len(set(made)) == len(made)


def test_the_machines_make_the_transitions_of_the_table_and_no_others(runs: list[Watched]) -> None:
    moved = {step for run in runs for step in run.steps}
    quiet = {step for run in runs for step in run.quiet}
    table = {transition for transition, _ in TABLE}
    assert moved - table == set(), "missing in the table"
    assert table - moved - quiet == set(), "in the table, and never seen"


def test_messages_go_to_whom_the_table_names(runs: list[Watched]) -> None:
    to = {transition: row.spec[1] for transition, row in TABLE if row.spec}
    for run in runs:
        for transition, receivers, came in run.told:
            named = to[transition]
            assert (named == SERVER) == (transition.party == "client")
            assert receivers == (frozenset({SERVER}) if named == SERVER else came[named]), transition


@every("party", ROWS)
def test_what_stands_in_no_row_is_ignored_before_its_time_and_refused_after_it(
    party: str, runs: list[Watched]
) -> None:
    order = {state: at for at, state in enumerate(ORDER[party])}
    due: dict[Any, set[int]] = {}
    for transition, _ in TABLE:
        if transition.party == party and transition.state is not None:
            due.setdefault(transition.event, set()).add(order[transition.state])
    mine = [run for run in runs if run.party == party]
    messages = {type(message): (sender, message) for run in mine for sender, message in run.got}
    assert set(messages) == {event for event in due if hasattr(event, "__wire__")}
    seen = set()
    for run in mine:
        for moment in run.moments:
            here = order[type(moment.state)]
            for kind, (sender, message) in messages.items():
                if here > max(due[kind]):
                    assert run.inner.receive(moment.state, sender, message).state is moment.state
                elif here < min(due[kind]):
                    with pytest.raises(RemoteProtocolError, match="not due"):
                        run.inner.receive(moment.state, sender, message)
                seen.add((type(moment.state), kind))
    assert len(seen) == len(order) * len(messages)


INTRODUCTION = """\
Printed from `phases.py`, which drives the machines. The names of states are theirs. What stands in no row
changes nothing. The host is asked for *begin*, *deal*, *mask* and *sign* (section 3), to *hide*
its values, and by the server to take the masks off (*unmasking*)."""


def test_the_specification_shows_these_tables() -> None:
    text = (Path(phases.__file__).parent / "SPEC.md").read_text(encoding="utf-8")
    assert text.split("## 14. Phases", 1)[1].split("\n## ", 1)[0].strip() == shown()


def shown() -> str:
    """What SPEC.md has to show."""
    tables = [f"**The {party}**\n\n{table(rows)}" for party, rows in ROWS.items()]
    return "\n\n".join([INTRODUCTION, *tables])


def table(rows: tuple[Row, ...]) -> str:
    head = "| state | event | checked | next state | effect |\n|---|---|---|---|---|"
    return "\n".join([head, *map(line, rows)])


def line(row: Row) -> str:
    states = ", ".join("" if state is None else state.__name__ for state in row.states)
    events = " or ".join(map(happening, row.events))
    follows = "the same" if row.follows is None else row.follows.__name__
    return f"| {states} | {events} | {row.checked} | {follows} | {'; '.join(effects(row))} |"


def happening(event: Any) -> str:
    if event in (BEGIN, DEADLINE) or hasattr(event, "__wire__"):
        return kind(event)
    return f"answer to {work(event)}"


def effects(row: Row) -> Iterator[str]:
    if row.spec is not None:
        sent, to = row.spec
        if row.before is not None:
            yield f"{kind(row.before)} to each receiver of the next"
        yield f"{kind(sent)} to {'the server' if to == SERVER else f'all whose {kind(to)} came'}"
    if row.asks is not None:
        yield f"asks for {work(row.asks)}"
    if row.result is not None:
        yield f"result: {row.result}"


def kind(event: Any) -> str:
    return f"`{event.__wire__.kind}`" if hasattr(event, "__wire__") else str(event)


def work(asked: Any) -> str:
    # The specification says "hide" of this order, in words of its own.
    name = asked if isinstance(asked, str) else asked.__name__.lower()
    return f"*{'hide' if name == 'computeandconceal' else name}*"


if __name__ == "__main__":
    print(shown())
