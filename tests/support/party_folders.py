"""Folders of all parties of a tiny study, enrolled and pinned, and the server of them in this process."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import State, run_round
from securefl.algorithm.queries import Answers, CohortQuery
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.core.streams import stream
from securefl.core.wire import Header
from securefl.deployment import folder, keys, pinning, plan_file
from securefl.deployment.messages import Enter
from securefl.deployment.party_setup import PartyStudy
from securefl.deployment.roster import line_of, parse
from securefl.deployment.transport import RemoteTransport, SendAndReceive
from securefl.engine.server import ServerParty
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord
from securefl.study.config import parse as parse_study
from support.hidden_studies import counts
from support.tiny_study import text, with_privacy

FEDAVG = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\n'
CLEAR = text(FEDAVG, clients=3, rounds=4)
CLIENTS = 4
"""Of a hidden sum: without one that is lost, and one that sees the total, another one hides each."""
MASKED = with_privacy(
    text(FEDAVG, clients=CLIENTS, rounds=4),
    {"sum": '"masked"', "dropout": "0.25", "corrupt": "0.0", "max_retries": "2", "max_client_weight": "0.51"}
    | counts(CLIENTS),
)
TWO_SERVER = MASKED.replace('"masked"', '"two-server"')


BUILD = PartyStudy.of
"""As it is, for `build_once`."""


def build_once(patch: pytest.MonkeyPatch) -> None:
    """Put `made` in the place of `PartyStudy.of`: building a world takes a second."""
    patch.setattr(PartyStudy, "of", classmethod(lambda cls, study, arm, seed, keeper=None: made(study.text)))


@cache
def made(study: str = CLEAR, home: Path | None = None) -> PartyStudy:
    """One arm of a study; built once. home: the folder of the study's own modules."""
    found = parse_study(study, home=home)
    return BUILD(found, found.arms[0], found.study.seeds[0])


def part(of: PartyStudy, name: str, counters: Path, **more: object) -> folder.PartyOptions:
    return folder.PartyOptions(name=name, arm=of.arm, seed=of.world.seed, counter=counters / name, **more)  # type: ignore[arg-type]


def names(of: PartyStudy) -> list[str]:
    return [*map(client_name, range(of.world.problem.clients)), *of.names]


def enrolled(root: Path, study: str = CLEAR) -> Path:
    """Folders of all parties below `root`, with one roster. Returns its file."""
    of, roster = made(study), root / "roster.jsonl"
    for name in names(of):
        folder.init(root / name, of, part(of, name, root / "counters"))
    roster.write_text("\n".join(line_of(keys.read(root / name, name).member()) for name in names(of)))
    for name in names(of):
        pin(root / name, roster)
    return roster


def pin(home: Path, roster: Path) -> None:
    pinning.pin(home, parse(roster.read_text()), roster.read_text())


def server_of(of: PartyStudy, record: OwnRecord, books: Ledger | None = None) -> ServerParty:
    clients = of.world.problem.clients
    return ServerParty(of.plan, of.spec, record, clients=clients, scores=of.scores, books=books)


@dataclass
class Asking:
    """The server of enrolled folders: it plays rounds with parties over an exchange."""

    root: Path
    exchange: SendAndReceive
    study: str = CLEAR
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def __post_init__(self) -> None:
        of, own = made(self.study), keys.read(self.root / SERVER, SERVER)
        pinned, _ = pinning.pinned_of(self.root / SERVER, plan_file.read(self.root / SERVER))
        self.session = pinned.session(of.plan, self.nonce)
        self.server = server_of(of, OwnRecord(SERVER, Journal(), own))
        self.server.enter(pinned.directory(self.session))
        enter = Enter.of(of.plan, "tiny", of.work, pinned, self.nonce, own)
        self.transport = RemoteTransport(self.exchange, enter, self.session, own)
        self.state: State = of.algorithm.start()
        self.parties = sorted(set(pinned.members) - {SERVER})

    def enter(self) -> tuple[str, ...]:
        """Who entered the session."""
        self.rejected_from = self.transport.enter(self.parties)
        return tuple(name for name in self.parties if name in self.transport)

    def play(self, number: int) -> list[int]:
        """Play a round. Returns the clients in its sum."""
        of = made(self.study)

        def query(question: CohortQuery, stage: int) -> Answers:
            return self.server.query(question, Header(self.session, number, 0, stage), self.transport)

        rng = stream(of.world.seed, "selection", number)
        played = run_round(of.algorithm, self.state, of.world.population(), number, rng, query)
        self.state = played.state
        return sorted(played.survivors)
