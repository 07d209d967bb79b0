"""Runs a study on the server of a deployment. Clients and key holder run on machines of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from securefl.accounting.composition import compose
from securefl.accounting.figures import in_words
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError
from securefl.core.logs import to_stderr
from securefl.core.messages import client_name
from securefl.core.release import PARTIES, SERVER
from securefl.core.text_safety import some
from securefl.deployment import plan_file
from securefl.deployment import spending as spendings
from securefl.deployment.engine import RemoteEngine, ServerSide
from securefl.deployment.folder import STUDY
from securefl.deployment.gathering import AT_ONCE, Patience
from securefl.deployment.party_setup import require_agreed, work_of
from securefl.deployment.pinning import pinned_of
from securefl.deployment.plan_file import PlanFile
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.spending import Spent
from securefl.deployment.transport import SendAndReceive
from securefl.engine.attendance import Absence
from securefl.engine.network import Faults
from securefl.engine.server import ServerParty
from securefl.mechanisms.charges import events_of
from securefl.storage.folder_lock import locked
from securefl.storage.own_record import OwnRecord
from securefl.study import config
from securefl.study.attended import Followed
from securefl.study.backends import ArmContext
from securefl.study.config import Arm
from securefl.study.interruption import Stop
from securefl.study.results import Results, stopped_after
from securefl.study.session import Tell, run_study


class OwnMachines:
    """A backend whose parties run on machines of their own. `exchange` carries requests to them.

    Args:
        agreed: the plan file of the server, with the plan and start that its owner agreed to.
        pinned: the server's roster.
        identity: the server's long-term keys, as the roster lists them.
        exchange: see `deployment.transport`.
        patience: how the server waits for parties.
    """

    in_one_process = False

    def __init__(
        self,
        agreed: PlanFile,
        pinned: PinnedRoster,
        identity: Identity,
        exchange: SendAndReceive,
        patience: Patience = AT_ONCE,
    ) -> None:
        self._agreed, self._pinned, self._identity, self._exchange = agreed, pinned, identity, exchange
        self._patience = patience
        self._context: ArmContext | None = None
        self._fewest = 0

    def session(self, arm_context: ArmContext) -> bytes:
        """The session's 32 bytes. Every party computes the same ones from its own plan and roster."""
        return self._pinned.session(arm_context.plan, arm_context.nonce)

    def engine(self, arm_context: ArmContext) -> RemoteEngine:
        """The engine of this arm.

        Raises ConfigError if the study has simulated network faults or lying clients, another plan or
        start than those agreed to, or the roster another number of clients.
        """
        require_agreed(self._agreed, arm_context.plan, arm_context.world)
        if arm_context.study.network != Faults():
            raise ConfigError(
                "Expected no [network] if parties run on machines of their own, got one: its faults are "
                "simulated. Leave the section out."
            )
        if lying := arm_context.study.corruption.lying:
            raise ConfigError(
                f"Expected no {', '.join(lying)} in [corruption] if parties run on machines of their own, "
                "got some: only a simulation has clients that lie about their updates. Leave the keys out."
            )
        clients = arm_context.world.problem.clients
        if len(self._pinned.clients) != clients:
            raise ConfigError(
                f"Expected a roster of the study's {clients} clients, got {len(self._pinned.clients)}. Agree "
                "on a study of as many clients, or pin a roster of the study's."
            )
        plan, study = arm_context.plan, arm_context.study
        record = OwnRecord(SERVER, arm_context.journal, self._identity)
        self._context = arm_context
        contributions = _specs(arm_context)
        self._patience.say(_asked_for(plan, list(contributions.values())))
        server = ServerParty(
            plan,
            contributions,
            record,
            clients=clients,
            scores=arm_context.scores,
            proven_cheaters=arm_context.proven_cheaters,
            retries_left=arm_context.retries_left,
            books=arm_context.ledger,
        )
        self._fewest = server.fewest
        return RemoteEngine(
            ServerSide(plan=plan, pinned=self._pinned, record=record, study=study.study.name),
            contributions,
            work_of(study, arm_context.arm, arm_context.world),
            self._exchange,
            server=server,
            nonce=arm_context.nonce,
            patience=self._patience,
        )

    def spending(self, records: Sequence[Mapping[str, Any]]) -> list[Spent]:
        """What the rounds of these records asked of each client's ledger. Empty before the engine is made."""
        context = self._context
        if context is None:
            return []
        return spendings.spending(context.plan, _specs(context), records, context.world.problem.clients)

    def end(self, records: Sequence[Mapping[str, Any]]) -> list[str]:
        """Why the run of these records ended before its last round, in a sentence; empty if it did not."""
        context = self._context
        if context is None or not records or not records[-1]["ended"]:
            return []
        number, rounds = records[-1]["round"], context.study.study.rounds
        if number == rounds:
            return []
        if why := stopped_after(context.study, records):
            return [f"Ended {why}."]
        out = {
            why: sorted({k for record in records for k in record[key]})
            for key, why in (("retired", Absence.OVER_BUDGET), ("proven_cheaters", Absence.CHEATED))
        }
        told = [f"{some([*map(client_name, who)])} ({why.value})" for why, who in out.items() if who]
        return [
            f"Ended after round {number} of {rounds}: no later round can open a sum, which needs "
            f"{self._fewest} of {context.world.problem.clients} clients. Out: {', '.join(told)}. Go on with "
            "a new study, under another plan: the ledgers keep what they spent."
        ]


def _specs(arm_context: ArmContext) -> dict[str, ValueSpec]:
    return {contribution.spec.name: contribution.spec for contribution in arm_context.algorithm.contributions}


def _asked_for(plan: Plan, specs: Sequence[ValueSpec]) -> str:
    """What all rounds together ask of a client's ledger, in words."""
    worst = {
        party: in_words(compose(events_of(plan, specs, party, plan.max_rounds), plan.delta))
        for party in PARTIES
    }
    spent = ", ".join(f"{epsilon} against the {party}" for party, epsilon in worst.items())
    return (
        f"In {plan.max_rounds} rounds each client's ledger is asked for at most epsilon {spent}. A client "
        "with less left retires by itself."
    )


def _servers(folder: Path) -> PlanFile:
    """The plan file of a server's folder. Raises ConfigError for another party's."""
    content = plan_file.read(folder)
    if content.name != SERVER:
        raise ConfigError(
            f"Expected the server's folder, got that of {content.name}: {folder}. Name the folder that "
            "`securefl party init --server` made."
        )
    return content


def others_of(folder: Path) -> tuple[str, ...]:
    """The parties that this folder's server contacts: its roster's clients, and the key holder if listed.

    Raises ConfigError if the folder is another party's, or has no pinned roster.
    """
    pinned, _ = pinned_of(folder, _servers(folder))
    return tuple(name for name in sorted(pinned.members) if name != SERVER)


def run_deployed(
    folder: Path,
    out: Path,
    exchange: SendAndReceive,
    *,
    tell: Tell = lambda arm, seed, record: None,
    fresh: Tell | None = None,
    stop: Stop | None = None,
    say: Callable[[str], None] = to_stderr,
    wait: float = 0.0,
    trusted: Sequence[Path] = (),
    clock: Callable[[], float] = monotonic,
    pause: Callable[[float], None] = sleep,
) -> tuple[Results, Path]:
    """Run, or resume, the study of a server's folder with parties on other machines.

    The run folder has the same files as a simulation's, and `private/spending.csv`: what the run asked of
    each client's ledger, beside what the server counts. Its ledger counts the releases that the server asked
    for; each client's own ledger is on that client's machine. The server uses the records that `[data]` deals
    to clients for their numbers and for an observer's figures, and for nothing else. It does not know the
    figures of models that clients keep for themselves.

    >>> from pathlib import Path
    >>> from securefl.deployment import run_deployed
    >>> run_deployed(Path("no-such-party"), Path("run"), lambda requests, entering: {})
    Traceback (most recent call last):
    securefl.core.errors.ConfigError: Expected a party's folder, got no-such-party, which has no party.toml.
    Make one: securefl party init.

    Args:
        folder: the server's folder. `securefl party init --server` makes it; its roster must be pinned.
        out: the run folder.
        exchange: takes a request for each party by name, and returns the replies that came in time
            (`SendAndReceive`).
        tell: called with (arm, seed, record) for every finished round, those of an earlier run included.
        fresh: called with the same for rounds that finish in this call.
        stop: asked between rounds and while parties are awaited; it raises `Interrupted` if a request to
            stop came.
        say: prints a line for a person: who is awaited, who took no part in a finished round, and what
            ledgers are asked for.
        wait: seconds. At the start all parties are awaited so long, and before each later round only if too
            few are present for it.
        trusted: the paths of --trust-code.
        clock, pause: read and wait for seconds; tests inject others.

    Returns:
        The results, and the path of the report.

    Raises:
        ConfigError: if the folder is not a server's or has no pinned roster, if the study cannot run on
            machines of its own, or if it has several arms or seeds. Each arm and seed is a plan of its own,
            to which the parties agree one by one. Also if another process uses the server's folder or `out`.
        TooFewParties: if too few parties are present for a round. It did not count; a later call goes on.
        DataError: if a file of the run folder is damaged or lost.
        Interrupted: after the round at hand, if `stop` was asked to stop.
    """
    content = _servers(folder)
    study = config.of_folder(folder / STUDY, trusted)
    if len(study.arms) != 1 or len(study.study.seeds) != 1:
        raise ConfigError(
            f"Expected a study of one arm and one seed, got {len(study.arms)} arms and "
            f"{len(study.study.seeds)} seeds. Make a study of each, and have all parties agree to it."
        )
    # Two coordinators of one folder would end each other's sessions, whatever their run folders are.
    with locked(folder, say):
        pinned, identity = pinned_of(folder, content)
        patience = Patience(seconds=wait, say=say, stop=stop, clock=clock, pause=pause)
        backend = OwnMachines(content, pinned, identity, exchange, patience)
        records: list[Mapping[str, Any]] = []
        followed, newest = Followed(), dict[int, str]()

        def noted(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
            records.append(record)
            if (presence := followed.presence(record)) is not None:
                newest[record["round"]] = presence.line()
            tell(arm, seed, record)

        def finished(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
            say(newest.pop(record["round"]))
            if fresh is not None:
                fresh(arm, seed, record)

        found = run_study(study, out, noted, fresh=finished, stop=stop, say=say, backend=backend)
        spent = backend.spending(records)
        spendings.write(out, spent)
        for line in (*backend.end(records), *spendings.sentences(spent)):
            say(line)
        return found
