"""A party for somebody's own app: one process has its folder, and an older copy of it is refused."""

from __future__ import annotations

import secrets
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from support.every import every
from support.hidden_plans import hidden

from securefl.accounting.events import NO_COST
from securefl.algorithm.plan import Plan
from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError, DataError, RemoteProtocolError
from securefl.core.release import KEY_HOLDER, SERVER, ReleaseKey
from securefl.deployment.connection import send
from securefl.deployment.local import LocalDeployment
from securefl.deployment.messages import REFUSED, Enter, Entered, decode_envelope, encode_envelope
from securefl.deployment.plan_file import require_sessions
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.status import status
from securefl.deployment.update_party import UpdateParty
from securefl.deployment.updates import Updates
from securefl.storage.counter import Counter

PLAN = hidden(Plan(delta=1e-5, max_rounds=9, non_private=("update",)), 4, sum="two-server", dropout=0.3)
UPDATES = Updates()
CLIENT = "client-0001"
KEYS = {
    name: Identity.generate(name)
    for name in ("client-0000", CLIENT, "client-0002", "client-0003", KEY_HOLDER, SERVER)
}
PINNED = PinnedRoster({name: own.member() for name, own in KEYS.items()})


def party(root: Path, name: str = CLIENT, folder: str = "", **more: int) -> UpdateParty:
    home, counter = root / (folder or name), root / "counters" / name
    home.mkdir(exist_ok=True)
    return UpdateParty(name, PLAN, UPDATES, PINNED, KEYS[name], home, counter, **more)


def entered(own: UpdateParty) -> None:
    request = Enter.of(PLAN, "s", UPDATES.digest, PINNED, secrets.token_bytes(32), KEYS[SERVER])
    reply = own.answer(None, encode_envelope(request))  # type: ignore[arg-type]
    assert decode_envelope(reply, Entered, sender="it").number == 0


@every("name", [CLIENT, KEY_HOLDER])
def test_a_folder_from_a_backup_is_refused(name: str, tmp_path: Path) -> None:
    with closing(party(tmp_path, name)) as own:
        entered(own)
    shutil.copytree(tmp_path / name, tmp_path / "backup")
    with closing(party(tmp_path, name)) as own:
        entered(own)
    shutil.move(tmp_path / name, tmp_path / "newest")
    shutil.move(tmp_path / "backup", tmp_path / name)
    with pytest.raises(DataError, match=r"2 sessions.*older copy"):
        party(tmp_path, name)
    shutil.rmtree(tmp_path / name)
    with pytest.raises(DataError, match="got none"):  # nor does a new folder begin at zero
        party(tmp_path, name)
    shutil.rmtree(tmp_path / name)
    shutil.move(tmp_path / "newest", tmp_path / name)
    with closing(party(tmp_path, name)) as own:
        entered(own)


def test_its_owner_agrees_to_a_number_of_sessions_without_noise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        party(tmp_path, sessions=0)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    with closing(party(tmp_path)) as own:
        entered(own)
        own.files.diary.count(own.resident.session)
        with pytest.raises(RemoteProtocolError):
            entered(own)
        assert "sessions=2" in own.files.diary.refusals()[0].text
    said = status(tmp_path / CLIENT)["sessions"]["bare"]
    assert (said["used"], said["allowed"]) == (1, 1)
    with closing(party(tmp_path, sessions=2)) as own:
        entered(own)
    assert status(tmp_path / CLIENT)["sessions"]["bare"] == {"used": 1, "allowed": 2, "next": ""}


def test_a_ledger_from_a_backup_is_refused_alone_too(tmp_path: Path) -> None:
    party(tmp_path).close()
    shutil.copy(tmp_path / CLIENT / "ledger.sqlite", tmp_path)
    with closing(party(tmp_path)) as own:
        assert own.files.ledger is not None
        own.files.ledger.reserve([(ReleaseKey(CLIENT, bytes(32), 1, 0, 0, "update"), NO_COST)])
    (tmp_path / CLIENT / "ledger.sqlite-head").unlink()
    shutil.copy(tmp_path / "ledger.sqlite", tmp_path / CLIENT)
    with pytest.raises(DataError, match="such as from a backup"):
        party(tmp_path)


def test_a_file_that_is_lost_is_not_begun_anew(tmp_path: Path) -> None:
    party(tmp_path).close()
    (tmp_path / CLIENT / "ledger.sqlite").unlink()
    with pytest.raises(DataError, match="got none"):
        party(tmp_path)
    assert not (tmp_path / CLIENT / "ledger.sqlite").exists()


def test_two_processes_of_one_party_and_of_a_copy_are_refused(tmp_path: Path) -> None:
    with closing(party(tmp_path)) as own:
        shutil.copytree(tmp_path / CLIENT, tmp_path / "copy")
        for folder in (CLIENT, "copy"):
            with pytest.raises(ConfigError, match="in use by process"):
                party(tmp_path, folder=folder)
        entered(own)
    party(tmp_path).close()


def test_a_counter_that_is_lost_is_begun_anew_by_the_owners_word(tmp_path: Path) -> None:
    with closing(party(tmp_path)) as own:
        entered(own)
    shutil.rmtree(tmp_path / "counters" / CLIENT)
    with pytest.raises(ConfigError, match=r"Counter\.begin"):
        party(tmp_path)
    Counter(tmp_path / "counters" / CLIENT).begin()
    party(tmp_path).close()


def test_a_counter_inside_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="outside"):
        UpdateParty(CLIENT, PLAN, UPDATES, PINNED, KEYS[CLIENT], tmp_path, tmp_path / "counter")


def test_a_second_house_takes_nothing_from_the_first(tmp_path: Path) -> None:
    def answers(house: LocalDeployment) -> None:
        assert send(house.where(CLIENT), b"anything", timeout=10) == REFUSED

    with LocalDeployment(PLAN, UPDATES, clients=3, folder=tmp_path) as first:
        second = LocalDeployment(PLAN, UPDATES, clients=3, folder=tmp_path)
        with pytest.raises(ConfigError, match="in use by process"):
            second.__enter__()
        answers(first)
    with LocalDeployment(PLAN, UPDATES, clients=3, folder=tmp_path) as again:
        answers(again)


@every("sessions", [10**9 + 1, 99999999999999999999])
def test_no_number_of_sessions_that_no_file_can_hold_is_taken(tmp_path: Path, sessions: int) -> None:
    with pytest.raises(ConfigError):
        require_sessions(sessions)
    with pytest.raises(ConfigError):
        party(tmp_path, sessions=sessions)


@pytest.mark.parametrize("name", [CLIENT, KEY_HOLDER])
def test_the_log_of_a_client_says_once_that_state_of_its_app_is_not_held(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(party(tmp_path, name)) as own:
        for _ in range(2):
            entered(own)
    assert len(loose(caplog)) == (name == CLIENT), caplog.messages


def test_the_log_of_a_simulation_says_it_once_for_all_of_its_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalDeployment(PLAN, UPDATES, clients=4, folder=tmp_path):
        pass
    (said,) = loose(caplog)
    assert "4 clients" in said


def loose(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one for one in caplog.messages if "state" in one and "update" in one]


def test_noise_is_correlated_on_the_update_alone() -> None:
    """No model adds up metrics of an evaluation, of which each round is read by itself."""
    resting = Plan(
        delta=1e-5, max_rounds=9, unit="client", adjacency="zero-out", noise="central", noise_multiplier=1.0,
        separation=3, coefficients=(1.0, 0.5), adversaries=("others",),
    )  # fmt: skip
    own = Updates(update_bound=1.0, evaluation=("loss",), evaluation_bound=1.0).spec(resting)
    assert {name: resting.correlation(spec).correlated for name, spec in own.items()} == {
        "update": True,
        "evaluation": False,
    }
    assert {resting.apart(spec) for spec in own.values()} == {3}
