"""Cut off at any write or commit, a run ends as if it had never been, however it sums and noises.

What is drawn from the operating system is drawn from a party's name and round here, so that two runs are
alike, noise included.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support.private_studies import AVERAGING, DISTRIBUTED, KEY_HOLDER, private
from support.private_studies import client_level as study
from support.tiny_study import FEDPROF, composed, plain, run, same_state, text, with_privacy, world

from securefl.accounting.ledger import Ledger
from securefl.core.errors import WorkerDied
from securefl.core.keys import SecretKey
from securefl.storage.database import Database
from securefl.storage.journal import Journal
from securefl.study import arm as arm_files
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import RuntimeSection, Study, parse
from securefl.study.run import run_arm
from securefl.training import dpsgd
from securefl.training.dpsgd import train_privately

NETWORK = "\n[network]\nreorder = true\nduplicate = 0.2\ndropout = {}\n"
LOST = 0.08
SHARES: dict[str, Any] = dict(DISTRIBUTED)
MASKED: dict[str, Any] = {
    "sum": '"masked"',
    **DISTRIBUTED,
    "max_retries": "5",
    "dropout": "0.35",
    "min_cohort_size": "4",
    "min_honest": "2",
}
RUNS: dict[str, Callable[[], Study]] = {
    "masked, shares of noise": lambda: study(sum='"masked"', **SHARES),
    "masked, on a bad network": lambda: parse(study(**MASKED).text + NETWORK.format(LOST)),
    "clear, central noise": lambda: study(),
    "clear, clients that draw": lambda: study(sampling_rate="0.5", adversaries='["others"]'),
    "masked, central noise": lambda: study(sum='"masked"', dropout="0.2", corrupt="0.0"),
    "encrypted, central noise": lambda: study(sum='"ckks"', dropout="0.2", corrupt="0.0"),
    "two servers, central noise": lambda: study(sum='"two-server"', dropout="0.2", corrupt="0.0"),
    "two servers, noise of the key holder": lambda: study(**KEY_HOLDER),
    "two servers, on a bad network": lambda: parse(
        study(**KEY_HOLDER | {"max_retries": "5", "dropout": "0.5", "min_cohort_size": "5"}).text
        + NETWORK.format(LOST)
    ),
    "clear, on a bad network": lambda: parse(text(FEDPROF, clients=4) + NETWORK.format(0.1)),
}


class Killed(BaseException):
    """No handler of errors may take it."""


class Fixed(Journal):
    """Secrets by party and round."""

    def _lasting(self, party: str, session: bytes) -> SecretKey:
        self._random = lambda count: hashlib.sha256(f"lasting {party}".encode()).digest()
        return super()._lasting(party, session)

    def _secret(self, party: str, session: bytes, number: int) -> SecretKey | None:
        self._random = lambda count: hashlib.sha256(f"{number} {party}".encode()).digest()
        return super()._secret(party, session, number)


class Power:
    """Fails at a write, or at the commit of a round: before it counts, or just after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes, self.fails_at, self.after, self.gone = 0, 0, False, False
        transaction, commit, power = Database.transaction, Database._commit, self

        @contextmanager
        def counted(self: Database, afterwards: Callable[[], None] | None = None) -> Iterator[None]:
            fails = power.counts()
            with transaction(self, afterwards):
                yield
                if fails and not power.after:
                    power.fail()
            if fails:
                power.fail()

        def committed(self: Database) -> None:
            if power.gone:  # nobody is left to commit what was written before
                self._db.close()
                raise Killed
            fails = power.counts()
            if fails and not power.after:
                self._db.close()
                power.fail()
            commit(self)
            if fails:
                power.fail()

        monkeypatch.setattr(Database, "transaction", counted)
        monkeypatch.setattr(Database, "_commit", committed)

    def counts(self) -> bool:
        """Count a write or a commit. Returns whether it fails."""
        self.writes += 1
        return self.writes == self.fails_at

    def fail(self) -> NoReturn:
        self.gone = True
        raise Killed

    def fail_at(self, write: int, *, after: bool) -> None:
        self.writes, self.fails_at, self.after, self.gone = 0, write, after, False


@pytest.fixture
def power(monkeypatch: pytest.MonkeyPatch) -> Power:
    monkeypatch.setattr(arm_files, "Journal", Fixed)
    monkeypatch.setattr("securefl.study.checkpoint.secrets.token_hex", lambda count: "ab" * count)
    return Power(monkeypatch)


def ended(of: Study, folder: Path) -> tuple[Any, ...]:
    """Model, records and what every client was charged, of a finished run."""
    home = arm_folder(folder, of.arms[0], 3)
    _, plan = composed(of)
    with Checkpoint(checkpoint_file(home)) as kept:
        state, records = kept.load()
    with Ledger(home / "ledger.sqlite", plan.terms()) as ledger:
        rows = sorted((row[0], *row[2:8]) for row in ledger.rows())
    return state, plain(records), rows


@pytest.mark.parametrize("name", RUNS)
def test_cut_off_at_durable_writes(name: str, tmp_path: Path, power: Power) -> None:
    check(RUNS[name](), tmp_path, power, most=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_cut_off_at_every_durable_write(name: str, tmp_path: Path, power: Power) -> None:
    check(RUNS[name](), tmp_path, power, most=10_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arm",
    [
        'protocol = "fedcor"\nfraction = 1.0\nwarm_up = 1\ninterval = 1\nupdates = 1',
        'protocol = "adds"\nfraction = 1.0\nmin_clients_per_entry = 2',
    ],
    ids=["trial", "maps"],
)
def test_cut_off_in_a_round_of_several_sums(arm: str, tmp_path: Path, power: Power) -> None:
    """A trial's sum and the round's own, or a map and what is kept on the device until its update."""
    written = text(f'[[arm]]\nname = "x"\n{arm}\n', clients=4, rounds=3)
    hidden = {"sum": '"masked"', "dropout": "0.25", "corrupt": "0.0"}
    if "adds" in arm:  # without noise its maps are in no hidden sum
        hidden |= {"noise": '"distributed"', "epsilon": "8.0", "delta": "1e-2"}
        hidden |= {"unit": '"client"', "adjacency": '"zero-out"'}
        written = written.replace("batch_size = 48\n", "batch_size = 48\nupdate_bound = 0.5\n")
    check(parse(with_privacy(written, hidden)), tmp_path, power, most=6)


def check(of: Study, folder: Path, power: Power, *, most: int) -> None:
    """Cut off at so many writes, evenly over the run, and once more in each run that is resumed."""
    here = world(of)

    def played(home: Path) -> None:
        run(of, home, here=here)

    played(folder / "whole")
    writes, whole = power.writes, ended(of, folder / "whole")
    assert writes > 12
    parts = min(most, writes)
    for write in [1 + writes * part // parts for part in range(parts)]:
        home = folder / str(write)
        for at, after in ((write, False), (7, True)):
            power.fail_at(at, after=after)
            with suppress(Killed):
                played(home)
                assert after, "there are fewer writes left than were played in"
        power.fail_at(0, after=False)
        played(home)
        state, records, rows = ended(of, home)
        assert rows == whole[2], f"cut off at write {write}"
        assert records == whole[1], f"cut off at write {write}"
        assert same_state(state, whole[0]), f"cut off at write {write}"


@pytest.mark.parametrize("name", ["fedavg", "fedlog"])
def test_a_worker_that_dies_costs_no_round_and_no_charge(
    name: str, tmp_path: Path, power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its charges stand when it dies. The round is played again with the same batches and the same noise."""
    options = {"fedavg": AVERAGING["fedavg"], "fedlog": 'body = "dp-sgd"'}[name]
    words = {"noise": '"local"', "epsilon": "6.0"} if name == "fedlog" else {}
    of = private(name, options, rounds=3, **words)
    of = replace(of, runtime=RuntimeSection(training="sequential", workers=2))
    here = world(of)
    run(of, tmp_path / "whole", here=here)
    whole = ended(of, tmp_path / "whole")
    records: list[Any] = []

    def train(*args: Any) -> None:
        if os.getpid() != pid and len(records) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        train_privately(*args)

    pid = os.getpid()
    with monkeypatch.context() as patched:
        patched.setattr(dpsgd, "train_privately", train)
        with pytest.raises(WorkerDied, match=r"signal 9 \(SIGKILL\)"):
            run_arm(of, of.arms[0], here, tmp_path / "cut", records.append)
    _, plan = composed(of, here)
    with Ledger(arm_folder(tmp_path / "cut", of.arms[0], 3) / "ledger.sqlite", plan.terms()) as ledger:
        assert {row[2] for row in ledger.rows()} >= {2}, "the second round was not charged before it trained"
    run(of, tmp_path / "cut", here=here)
    state, played, rows = ended(of, tmp_path / "cut")
    assert rows == whole[2]
    for record in (*played, *whole[1]):
        record.pop(
            "epsilon"
        )  # of the same charges, but composed in another order after a restart: 1e-9 apart
    assert played == whole[1]
    assert same_state(state, whole[0])


def test_the_bad_network_costs_attempts_and_opens_sums(tmp_path: Path) -> None:
    """Or the rounds above would not be played again attempt by attempt."""
    of = RUNS["masked, on a bad network"]()
    records = run(of, tmp_path).records
    assert records[-1]["retries_left"] < of.privacy.max_retries
    assert any(len(record["answered"]) for record in records)
