"""`securefl party serve` as a process: it is killed in mid-round, started again, and met by hostile bytes."""

from __future__ import annotations

import signal
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.coordinated import Federation
from support.grid_parties import Parties
from support.hidden_studies import hidden
from support.party_folders import MASKED, TWO_SERVER, Asking, enrolled
from support.started import Started

from securefl.algorithm.queries import Answers, CohortQuery
from securefl.core.errors import RemoteProtocolError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header, peek
from securefl.deployment import folder as folders
from securefl.deployment.connection import send
from securefl.deployment.messages import REFUSED
from securefl.deployment.status import status
from securefl.engine.network import Network
from securefl.engine.observer import Log

pytestmark = pytest.mark.usefixtures("built_once")

APART, EVERYBODY, OTHERS = "client-0001", [0, 1, 2, 3], [0, 2, 3]
DIES = """
import os, signal, sys
from securefl.commands.main import main
from securefl.storage.journal import Journal

act, record = sys.argv.pop(1), Journal.record

def dying(self, acts):
    answers = record(self, acts)
    if any(getattr(one, "act", "begin") == act for one in acts):
        os.kill(os.getpid(), signal.SIGKILL)
    return answers

Journal.record = dying
main()
"""
"""The command line, killed right after the first act of a kind is on record: nothing of it is said."""


@contextmanager
def process(home: Path, *program: str) -> Iterator[Started]:
    """`securefl party serve`, once it says that its socket is there. program: runs in place of `securefl`."""
    serving = Started(*(program or ("-m", "securefl")), "party", "serve", home)
    try:
        serving.until(f"{home.name} serves on")
        yield serving
    finally:
        serving.kill()


class Exchange:
    """Requests to `apart`, in a process of its own, and to all other parties of a study, in this one.

    Attributes:
        seen: the requests that the party apart was sent, and answered or not.
        dies: its process, killed once it has answered the request of this number.
    """

    def __init__(self, root: Path, apart: str = APART, study: str = MASKED) -> None:
        enrolled(root, study)
        self.apart, self.here = apart, Federation(root, study)
        self.here.start(*(name for name in self.here.names if name != apart))
        self.path = root / apart / "run" / "party.sock"
        self.seen: list[bytes] = []
        self.dies: dict[int, Started] = {}

    def __call__(self, sent: Mapping[str, bytes], entering: bool = False) -> dict[str, bytes]:
        said = self.here.exchange(sent)
        if self.apart in sent:
            self.seen.append(sent[self.apart])
            try:
                said[self.apart] = send(self.path, sent[self.apart], timeout=60)
            except RemoteProtocolError:
                return said
            if (victim := self.dies.pop(len(self.seen), None)) is not None:
                victim.kill()
        return said

    def close(self) -> None:
        self.here.stop()


@pytest.fixture
def exchange(tmp_path: Path) -> Iterator[Exchange]:
    with closing(Exchange(tmp_path)) as own:
        yield own


def test_a_party_in_a_process_of_its_own(tmp_path: Path, exchange: Exchange) -> None:
    home, path, asking = tmp_path / APART, exchange.path, Asking(tmp_path, exchange, MASKED)
    with process(home) as first:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
        assert asking.enter() == ("client-0000", APART, "client-0002", "client-0003")
        assert asking.play(1) == EVERYBODY
        hostile(path)
        # killed after its second wave of the round: keys were dealt, nothing is summed yet
        exchange.dies[len(exchange.seen) + 2] = first
        assert asking.play(2) == OTHERS
    with process(home) as second:
        # it has left the session, and comes back for the next round
        assert send(path, exchange.seen[-1], timeout=30) == REFUSED
        assert asking.enter() == ("client-0000", APART, "client-0002", "client-0003")
        assert asking.play(3) == EVERYBODY
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 143
    assert not path.exists()
    said = status(home)
    why = " ".join(one["why"] for one in said["refusals"])
    assert "claim of 2147483648" in why
    assert "after a restart" in why
    assert said["sessions"]["count"] == 1


def hostile(path: Path) -> None:
    """Bytes that end their own connection, and nothing else."""
    for sent in (struct.pack("<Q", 2**31), struct.pack("<Q", 99) + b"cut"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(path))
            connection.sendall(sent)


@pytest.mark.parametrize(
    "act",
    [pytest.param("begin", marks=pytest.mark.slow), "mask", pytest.param("sign", marks=pytest.mark.slow)],
)
def test_a_killed_client_drops_out_and_is_back_in_the_next_round(
    act: str, tmp_path: Path, exchange: Exchange
) -> None:
    """SIGKILL right after an act is on record: nothing of it was said, and the round goes on without it."""
    asking = Asking(tmp_path, exchange, MASKED)
    killed_after(act, tmp_path / APART, asking, OTHERS)
    with folders.opened(tmp_path / APART) as party:
        releases = [(row[2], row[4]) for row in party.files.ledger.rows()]
    # Who has signed has masked its input before, and charged it.
    assert releases == ([(1, 1)] if act == "sign" else []) + [(2, 1)]


def test_a_key_holder_that_is_killed_costs_one_round(tmp_path: Path) -> None:
    """Its record says that it opened a total, and nobody has heard that."""
    with closing(Exchange(tmp_path, KEY_HOLDER, TWO_SERVER)) as exchange:
        killed_after("open", tmp_path / KEY_HOLDER, Asking(tmp_path, exchange, TWO_SERVER), [])


def killed_after(act: str, home: Path, asking: Asking, survivors: list[int]) -> None:
    """A round in which the party apart dies, with these survivors, and one after it was started again."""
    with process(home, "-c", DIES, act) as first:
        assert asking.enter() == tuple(asking.parties)
        assert asking.play(1) == survivors
        assert first.wait(30) == -signal.SIGKILL
    with process(home):
        assert asking.enter() == tuple(asking.parties)
        assert asking.play(2) == EVERYBODY


# Parties with nothing but their files --------------------------------------------------------------


def test_a_restarted_client_refuses_what_its_journal_forbids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that calls it into the attempt it has signed in, with another cohort, gets nothing of it."""
    parties = Parties(hidden("masked", clients=6, rounds=1))
    engine, asked = parties.together(), list[tuple[CohortQuery, Header]]()
    query = engine.query

    def noted(question: CohortQuery, header: Header) -> tuple[Answers, Log]:
        asked.append((question, header))
        return query(question, header)

    monkeypatch.setattr(engine, "query", noted)
    (state,) = parties.played(engine)
    victim, heard = "client-0002", list[bytes]()
    charged = parties.files[victim].ledger.rows()
    assert charged

    def listening(sender: str, to: str, data: bytes) -> bytes:
        heard.extend([data] * (sender == victim))
        return data

    # all are started again; the same round with another cohort, and another model
    question, header = asked[0]
    smaller = replace(question, cohort=(0, 1, 2, 3, 4), weights=None, broadcast=state.broadcast + 1)
    answers, _ = parties.together().query(smaller, header, Network(tamper=listening))
    assert answers.survivors == ()
    # it answered the order, which holds no number, and nothing of the attempt
    assert [peek(data, victim).attempt for data in heard] == [0]
    assert parties.files[victim].ledger.rows() == charged


def test_the_server_hears_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why a client without records sends what it sends, its own machine alone knows."""
    parties = Parties(hidden("masked", clients=6, rounds=2))
    world = parties.made.world
    records = [*world.records[:5], tuple(part[:0] for part in world.records[5])]
    parties.made = replace(parties.made, world=replace(world, records=records))
    engine, heard, told = parties.together(), set[str](), list[set[str]]()
    query, played = engine.server.query, engine.query

    def asked(*given: Any) -> Answers:
        answers = query(*given)
        heard.update(engine.server.log.abstained, engine.server.log.blank)
        return answers

    def noted(question: CohortQuery, header: Header) -> tuple[Answers, Log]:
        answers, log = played(question, header)
        told.append({*log.abstained, *log.blank})
        return answers, log

    monkeypatch.setattr(engine.server, "query", asked)
    monkeypatch.setattr(engine, "query", noted)
    parties.played(engine)
    assert heard <= {SERVER}
    # Its number of records is public here, so that one is answered as it is.
    assert all("client-0005" in one for one in told[1:])
