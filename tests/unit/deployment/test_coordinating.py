"""A server waits for its parties, stops with the reason, and counts no round that nobody could answer."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support.coordinated import Federation, after, federation
from support.every import every
from support.party_folders import CLEAR, MASKED, TWO_SERVER, enrolled, made, names, part, pin
from support.private_studies import client_level
from support.tiny_study import with_privacy

from securefl.accounting.statements import statement
from securefl.commands.exit_codes import ExitCode
from securefl.commands.main import cli
from securefl.core.errors import ConfigError, DataError, RemoteProtocolError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment import folder as folders
from securefl.deployment import keys, pinning, sockets
from securefl.deployment import spending as spendings
from securefl.deployment.gathering import TooFewParties
from securefl.deployment.messages import Enter, decode_envelope
from securefl.deployment.party_setup import PartyStudy
from securefl.deployment.roster import line_of
from securefl.deployment.server import listening
from securefl.deployment.sockets import SocketExchange
from securefl.deployment.status import status
from securefl.engine.attendance import Absence
from securefl.study import session
from securefl.study.attended import presences
from securefl.study.interruption import Interrupted

pytestmark = pytest.mark.usefixtures("built_once")

NOISED = client_level(rounds=4).text.replace("clients = 6", "clients = 3")
SHARES = with_privacy(
    client_level(rounds=4).text,
    {
        "sum": '"masked"',
        "noise": '"distributed"',
        "dropout": "0.34",
        "corrupt": "0.0",
        "min_cohort_size": "4",
        "min_honest": "2",
        "max_client_weight": "0.51",
    },
)
"""Four of its six clients leave three contributions, and shares of noise are sized for four."""
FULL = [(1, [0, 1, 2]), (2, [0, 1, 2]), (3, [0, 1, 2]), (4, [0, 1, 2])]


def lines(own: Federation) -> list[str]:
    return [one.line() for one in presences(own.records)]


def orders(own: Federation) -> list[int]:
    """Counts from now on the requests that are no request to enter."""
    sent: list[int] = []

    def before(requests: Mapping[str, bytes]) -> None:
        sent.extend(1 for data in requests.values() if not is_enter(data))

    own.before = before
    return sent


def is_enter(data: bytes) -> bool:
    try:
        return bool(decode_envelope(data, Enter, sender="test"))
    except RemoteProtocolError:
        return False


# Waiting --------------------------------------------------------------------------------------------------


def test_the_report_of_a_finished_run_comes_again_by_the_same_command_and_by_no_simulation(
    tmp_path: Path,
) -> None:
    enrolled(tmp_path)
    with federation(tmp_path) as own:
        _, page = own.coordinate(tmp_path / "run")
        page.unlink()
        with pytest.raises(DataError, match="party coordinate"):
            session.reopen(tmp_path / "run")
        sent = orders(own)
        assert own.coordinate(tmp_path / "run")[1].exists()
    assert not sent


def test_a_study_with_too_few_parties_plays_no_round_and_charges_nothing(tmp_path: Path) -> None:
    """It played its rounds in a second, with nobody, and the server counted them."""
    enrolled(tmp_path, MASKED)
    with federation(tmp_path, MASKED) as own:
        own.stop("client-0001", "client-0002")
        sent = orders(own)
        with pytest.raises(TooFewParties) as stopped:
            own.coordinate(tmp_path / "run", wait=30)
        assert own.rounds == []
        assert sent == []
        assert own.clock.now == 30
        assert str(stopped.value) == (
            "Expected 3 clients, of which 2 are present for round 1 within 30 s. Absent: client-0001 "
            "(silent), client-0002 (silent). The round did not count, and nothing was charged. Start the "
            "silent parties. A party that refuses has another plan or roster, or keys of before a rotation, "
            "or no session without noise left; its owner reads which in `securefl party status`. Then go on."
        )
        assert own.said[1:3] == [
            "Asking client-0000, client-0001, client-0002, client-0003 to enter.",
            "Round 1 waits for client-0001 (silent), client-0002 (silent), up to 30 s.",
        ]
        # it goes on with the same round
        own.start("client-0001", "client-0002")
        own.coordinate(tmp_path / "run", wait=30)
    assert own.rounds == [(k, [0, 1, 2, 3]) for k in range(1, 5)]
    assert status(tmp_path / "client-0000")["sessions"]["count"] == 1


def test_a_cohort_over_which_noise_falls_short_plays_no_round(tmp_path: Path) -> None:
    """Four of six were enough to begin, and no sum opened: round after round passed until two were back."""
    enrolled(tmp_path, SHARES)
    with federation(tmp_path, SHARES) as own:
        own.stop("client-0001", "client-0002")
        with pytest.raises(TooFewParties, match="Expected 5 clients, of which 4 are present for round 1"):
            own.coordinate(tmp_path / "run", wait=30)
        assert own.rounds == []
        own.start("client-0001")
        own.coordinate(tmp_path / "run", wait=30)
    assert own.rounds == [(k, [0, 1, 3, 4, 5]) for k in range(1, 5)]


def test_who_comes_in_time_takes_part(tmp_path: Path) -> None:
    enrolled(tmp_path)
    with federation(tmp_path) as own:
        own.stop("client-0001")
        own.clock.when = lambda seconds: own.start("client-0001") if seconds == 3 else None
        own.coordinate(tmp_path / "run", wait=30)
    assert own.rounds == FULL
    assert own.clock.now == 3


def killed(own: Federation, wave: int) -> None:
    """A coordinator of the run that is killed at this wave."""
    waves = [0]

    def exchange(requests: Mapping[str, bytes], entering: bool) -> dict[str, bytes]:
        replies, waves[0] = own.exchange(requests), waves[0] + 1
        if waves[0] == wave:
            raise KeyboardInterrupt
        return replies

    with pytest.raises(KeyboardInterrupt):
        own.coordinate(own.root / "run", exchange=exchange)
    own.records.clear()


@every(("study", "wave", "cut"), [(CLEAR, 5, 2), (MASKED, 18, 2), (TWO_SERVER, 11, 2)])
def test_a_round_that_a_kill_cut_off_is_not_ordered_twice(
    study: str, wave: int, cut: int, tmp_path: Path
) -> None:
    """Parties take no order twice. They refused it, and were called silent; attempts used up all retries."""
    enrolled(tmp_path, study)
    with federation(tmp_path, study) as own:
        killed(own, wave)
        own.stop("client-0002")  # another cohort than the one that was ordered
        own.coordinate(tmp_path / "run")
        left = [k for k in range(made(study).world.problem.clients) if k != 2]
        assert [answered for _, answered in own.rounds[cut - 1 :]] == [[]] + [left] * (4 - cut)
        assert [record["retries_left"] for record in own.records] == [made(study).plan.max_retries] * 4
    assert lines(own)[cut - 1] == (
        f"round {cut}: nobody was asked; no sum was opened: its orders had left before the server was "
        "stopped, and parties take none twice"
    )
    assert status(tmp_path / "client-0000")["refusals"] == []


def test_no_figure_is_below_the_ledger_of_a_client_whose_order_a_kill_cut_off(tmp_path: Path) -> None:
    enrolled(tmp_path, NOISED)
    with federation(tmp_path, NOISED) as own:
        killed(own, 4)
        own.stop("client-0002")  # it has the order, and no later one
        own.coordinate(tmp_path / "run")
    truth = {party: float(spent) for party, spent in status(tmp_path / "client-0002")["epsilon"].items()}
    assert 0 < truth["others"] < np.inf
    found = spendings.read(tmp_path / "run")[2]
    assert found.counted >= truth["others"] - 1e-6 > found.spent
    table = (tmp_path / "run" / "private" / "spending.csv").read_text().splitlines()
    assert table[0].startswith("# Not for publication")
    assert "client,asked,answered,counted,spent" in table
    (books,) = (tmp_path / "run").rglob("ledger.sqlite")
    for party, epsilon in truth.items():
        rows = statement(books, party=party, holder="client-0002").releases
        assert float(rows[-1]["epsilon"]) >= epsilon
    assert sum(2 in cohort for one in own.records for _, _, cohort in one["charged"]) == len(rows)


def test_without_its_key_holder_no_round_begins(tmp_path: Path) -> None:
    enrolled(tmp_path, TWO_SERVER)
    with federation(tmp_path, TWO_SERVER) as own:
        own.stop(KEY_HOLDER)
        with pytest.raises(TooFewParties, match=r"1 .* key-holder \(silent\)"):
            own.coordinate(tmp_path / "run", wait=5)
    assert own.rounds == []
    assert status(tmp_path / "client-0000")["releases"] == {"committed": 0, "reserved": 0}


def test_a_party_that_hangs_costs_the_deadline_of_entering_and_is_named_as_silent(tmp_path: Path) -> None:
    """It takes every connection. It held up every round for an hour, the deadline of a training."""
    enrolled(tmp_path)
    hung: list[str] = []

    def hanging(requests: Mapping[str, bytes], entering: bool) -> dict[str, bytes]:
        assert all(is_enter(data) == entering for data in requests.values())
        if "client-0001" in requests:
            hung.append("enter" if entering else "turn")
            own.clock.now += 10.0 if entering else 3600.0
        return own.exchange({name: data for name, data in requests.items() if name != "client-0001"})

    with federation(tmp_path) as own:
        own.coordinate(tmp_path / "run", wait=25, exchange=hanging)
    assert own.rounds == [(k, [0, 2]) for k in range(1, 5)]
    assert set(hung) == {"enter"}, "it gets no order"
    # 10 s, a pause of 1 s, 10 s, a pause, 10 s and more than 25 are over; then 10 s in each later round.
    assert own.clock.now == 32 + 3 * 10
    assert own.said[1:3] == [
        "Asking client-0000, client-0001, client-0002 to enter.",
        "Round 1 waits for client-0001 (silent), up to 15 s.",
    ]
    assert lines(own)[3] == "round 4: 2 of 3 answered; client-0001 silent since round 1"


def test_a_socket_that_takes_a_request_to_enter_and_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "ENTERING", 0.2)
    path = tmp_path / "run" / "party.sock"
    path.parent.mkdir(mode=0o750)
    with listening(path):  # nobody accepts: the kernel takes the connection and the request
        exchange = SocketExchange({"client-0000": path}, deadline=3600.0)
        assert exchange({"client-0000": b"a request"}, entering=True) == {}


def test_why_a_socket_is_not_used_is_said_once_and_a_silent_party_is_only_silent(tmp_path: Path) -> None:
    said: list[str] = []
    open_to_all = tmp_path / "open" / "party.sock"
    open_to_all.parent.mkdir()
    paths = {"client-0000": open_to_all, "client-0001": tmp_path / "none" / "party.sock"}
    exchange = SocketExchange(paths, deadline=0.2, say=said.append)
    requests = dict.fromkeys(paths, b"a request")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(open_to_all))
        listener.listen()
        assert exchange(requests) == {}
        assert said == [], "one hangs, the other one does not run"
        open_to_all.parent.chmod(0o777)  # another user could have put a socket there
        assert exchange(requests) == {}
        assert exchange(requests, entering=True) == {}
    (line,) = said
    assert line.startswith("client-0000: ")
    assert f"chmod go-w {open_to_all.parent}" in line


def test_a_request_to_stop_ends_the_waiting(tmp_path: Path) -> None:
    enrolled(tmp_path, MASKED)

    class Stops:
        def finishing(self, what: str) -> Any:
            from contextlib import nullcontext

            return nullcontext()

        def check(self) -> None:
            if own.clock.now >= 4:
                raise Interrupted(2)

    with federation(tmp_path, MASKED) as own:
        own.stop("client-0001", "client-0002")
        with pytest.raises(Interrupted):
            own.coordinate(tmp_path / "run", wait=3600, stop=Stops())
    assert own.clock.now == 4


@every(("study", "clients"), [(MASKED, 4), (SHARES, 6)])
def test_who_dies_in_a_round_loses_it_and_the_next_one_waits(
    study: str, clients: int, tmp_path: Path
) -> None:
    """Orders were sent, so charges are spent and the round counts; the next one does not begin."""
    enrolled(tmp_path, study)
    with federation(tmp_path, study) as own:
        waves, dying = [0], [f"client-000{k}" for k in range(1, clients - 1)]

        def before(requests: Mapping[str, bytes]) -> None:
            waves[0] += not any(map(is_enter, requests.values()))
            if waves[0] == 3 and len(own.up) == clients:
                own.stop(*dying)

        own.before = before
        with pytest.raises(TooFewParties, match="for round 2"):
            own.coordinate(tmp_path / "run")
    assert own.rounds == [(1, [])]
    (line,) = lines(own)
    silent = "; ".join(f"{name} silent since round 1" for name in dying)
    assert line.startswith(
        f"round 1: 2 of {clients} answered; {silent}; no sum was opened: No sum, in phase "
    ), "the first reason, not one that follows from it"


# Too few are left ------------------------------------------------------------------------------------------

BUDGETED = client_level(rounds=4, budget="6.0").text.replace("clients = 6", "clients = 3")


def replaced(root: Path, roster: Path, name: str, line: str, who: Sequence[str] = ()) -> None:
    """Put a line in the place of the party's in the roster, and have these pin it, by default all."""
    kept = [own for own in roster.read_text().splitlines() if f'"{name}"' not in own]
    roster.write_text("\n".join([*kept, line]))
    for each in who or names(made()):
        pin(root / each, roster)


def void(root: Path, name: str, of: PartyStudy) -> str:
    """A line of keys that nobody keeps."""
    folders.init(root / "void", of, part(of, name, root / "void-counters"))
    line = line_of(keys.read(root / "void", name).member())
    shutil.rmtree(root / "void")
    return line


def typed(own: Federation, *words: str) -> Result:
    """`securefl party coordinate`, with the parties of this process in place of sockets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sockets, "SocketExchange", lambda paths, **_: own.exchange)
        return CliRunner().invoke(cli, ["party", "coordinate", str(own.root / SERVER), *words])


def test_a_run_whose_clients_are_over_budget_ends_with_the_reason(tmp_path: Path) -> None:
    """No later round can have enough, so none is played, nobody is waited for, and no ledger is asked."""
    enrolled(tmp_path, BUDGETED)
    run = tmp_path / "run"
    with federation(tmp_path, BUDGETED) as own:
        done = typed(own, "--out", str(run), "--wait", "3600")
        sent = orders(own)
        again = typed(own, "--out", str(run), "--wait", "3600")
    assert sent == [], "a resumed run asks nobody either"
    said = (
        "Ended after round 2 of 4: no later round can open a sum, which needs 2 of 3 clients. Out: "
        "client-0000, client-0001, client-0002 (over budget). Go on with a new study, under another plan: "
        "the ledgers keep what they spent."
    )
    for result in (done, again):
        assert result.exit_code in (ExitCode.DONE, ExitCode.UNLEARNT), result.output
        assert result.stderr.splitlines().count(said) == 1, result.stderr
    assert (run / "report.html").is_file()
    assert status(tmp_path / "client-0000")["releases"] == {"committed": 2, "reserved": 0}


# Parties that refuse --------------------------------------------------------------------------------------


def rotated(root: Path, roster: Path, name: str) -> Path:
    """Back a party's folder up, rotate its keys, and have all pin the new roster. Returns the backup."""
    backup = root / "backup" / name
    shutil.copytree(root / name, backup)
    replaced(root, roster, name, line_of(pinning.rotate(root / name).member()))
    return backup


@every("name", ["client-0001", SERVER])
def test_a_backup_of_before_a_rotation_is_refused_at_its_start(name: str, tmp_path: Path) -> None:
    """It has its old keys and the old roster, which fit each other. Its counter knows better."""
    roster = enrolled(tmp_path)
    backup = rotated(tmp_path, roster, name)
    shutil.rmtree(tmp_path / name)
    backup.rename(tmp_path / name)
    said = rf"Expected the newest keys of {name}, .* backup of before `securefl party rotate`.*newest folder"
    own = Federation(tmp_path)
    with pytest.raises(ConfigError, match=said):
        own.coordinate(tmp_path / "run") if name == SERVER else own.start(name)
    done = CliRunner().invoke(cli, ["party", "enrol", str(tmp_path / name)])
    assert "is void" in str(done.exception)
    assert "of before `securefl party rotate`" in status(tmp_path / name)["counter"]["wrong"]
    # What the message says helps.
    replaced(tmp_path, roster, name, line_of(pinning.rotate(tmp_path / name).member()))
    with federation(tmp_path) as own:
        own.coordinate(tmp_path / "run")
    assert own.rounds == FULL


def test_a_backup_of_folder_and_counter_is_refused_by_the_first_order(tmp_path: Path) -> None:
    """No file of its own shows it. The roster of the others does, and both sides say so."""
    roster, which = enrolled(tmp_path, MASKED), ("client-0001", "client-0002")
    for name in which:
        shutil.copytree(tmp_path / "counters" / name, tmp_path / "backup" / "counters" / name)
    for name in which:
        rotated(tmp_path, roster, name)
    for name in which:
        for place in (Path(name), Path("counters", name)):
            shutil.rmtree(tmp_path / place)
            (tmp_path / "backup" / place).rename(tmp_path / place)
    with federation(tmp_path, MASKED) as own:
        sent = orders(own)
        said = r"client-0001 \(refused the order\).*keys of before a rotation"
        with pytest.raises(TooFewParties, match=said):
            own.coordinate(tmp_path / "run")
    assert sent == []
    why = status(tmp_path / "client-0001")["refusals"][0]["why"]
    assert "If this folder is from a backup, its keys may be void" in why


def test_a_stolen_roster_makes_nobody_the_server(tmp_path: Path) -> None:
    """A thief has all lines and no keys: it can pin no roster that parties have, and its own they refuse."""
    roster = enrolled(tmp_path)
    of = made()
    folders.init(tmp_path / "thief", of, part(of, SERVER, tmp_path / "thief-counter"))
    with pytest.raises(ConfigError, match="with its own keys"):
        pin(tmp_path / "thief", roster)
    own_line = line_of(keys.read(tmp_path / "thief", SERVER).member())
    lines_ = [line for line in roster.read_text().splitlines() if '"server"' not in line]
    forged = tmp_path / "forged.jsonl"
    forged.write_text("\n".join([*lines_, own_line]))
    pin(tmp_path / "thief", forged)
    (tmp_path / SERVER).rename(tmp_path / "honest")
    (tmp_path / "thief").rename(tmp_path / SERVER)
    refused = pytest.raises(TooFewParties, match=r"client-0000 \(refused the order\)")
    with federation(tmp_path) as own, refused:
        own.coordinate(tmp_path / "run", wait=5)
    assert own.rounds == []
    why = status(tmp_path / "client-0000")["refusals"][0]["why"]
    assert "signed by the server of the roster" in why
    assert status(tmp_path / "client-0000")["sessions"]["count"] == 0


@every("more", [-1, 1])
def test_a_roster_of_another_number_of_clients_than_the_study(more: int, tmp_path: Path) -> None:
    roster = enrolled(tmp_path)
    text = roster.read_text().splitlines()
    if more < 0:
        text = [line for line in text if "client-0002" not in line]
    else:
        text.append(line_of(keys.make(tmp_path, "client-0003").member()))
    roster.write_text("\n".join(text))
    with pytest.raises(ConfigError, match=f"study's 3 clients, got {3 + more}"):
        pin(tmp_path / SERVER, roster)


def test_a_client_in_the_middle_is_removed_by_a_line_of_keys_that_nobody_keeps(tmp_path: Path) -> None:
    roster = enrolled(tmp_path)
    removed = void(tmp_path, "client-0001", made())
    replaced(tmp_path, roster, "client-0001", removed, (SERVER, "client-0000", "client-0002"))
    with pytest.raises(ConfigError, match="got other keys"):
        pin(tmp_path / "client-0001", roster)
    with federation(tmp_path) as own:  # the removed party serves still, with the old roster
        own.coordinate(tmp_path / "run", wait=60)
    assert own.rounds == [(k, [0, 2]) for k in range(1, 5)]
    assert own.clock.now == 0, "its owner must act, so nobody waits for it"
    assert lines(own)[0] == "round 1: 2 of 3 answered; client-0001 refused the order since round 1"
    assert status(tmp_path / "client-0001")["sessions"]["count"] == 0


# One coordinator, and clocks ------------------------------------------------------------------------------


def test_a_second_coordinator_is_refused_by_name(tmp_path: Path) -> None:
    enrolled(tmp_path)

    def second() -> None:
        for out in ("run", "elsewhere"):
            with pytest.raises(ConfigError, match=f"{tmp_path / SERVER} is in use by process"):
                Federation(tmp_path, up=own.up).coordinate(tmp_path / out)

    with federation(tmp_path) as own:
        own.coordinate(tmp_path / "run", fresh=after({2: second}))
    assert own.rounds == FULL


def test_a_coordinator_with_a_copy_of_the_folder_ends_the_session_of_the_first(tmp_path: Path) -> None:
    enrolled(tmp_path)
    with federation(tmp_path) as own:
        second = Federation(tmp_path / "copy", up=own.up)
        shutil.copytree(tmp_path / SERVER, tmp_path / "copy" / SERVER)
        fresh = after({2: lambda: second.coordinate(tmp_path / "other")})
        with pytest.raises(TooFewParties, match=r"3 .* client-0000 \(refused"):
            own.coordinate(tmp_path / "run", fresh=fresh)
    assert second.rounds == FULL
    assert own.rounds == FULL[:2]
    assert "got one that ended" in status(tmp_path / "client-0000")["refusals"][0]["why"]


# What ledgers are asked for -------------------------------------------------------------------------------


def found(*absent: Mapping[str, str]) -> list[spendings.Spending]:
    """What clients spent over rounds in which all were asked and these were absent."""
    of = made(NOISED)
    name = next(name for name, spec in of.spec.items() if spec.reduction == "sum")
    cohort = [[name, False, [0, 1, 2]]]
    records = [{"charged": cohort, "seen": {"asked": names(of), "absent": one}} for one in absent]
    return spendings.spending(of.plan, of.spec, records, 3)


def test_a_client_that_missed_an_order_was_counted_for_more_than_it_spent() -> None:
    there, missed, gave = own = found({}, {"client-0001": "silent", "client-0002": "sent no value"})
    assert [(one.asked, one.answered) for one in own] == [(2, 2), (2, 1), (2, 1)]
    assert missed.spent < missed.counted == there.spent == there.counted
    assert gave.spent == gave.counted, "who sends no value has reserved its charges"
    said = spendings.sentences(own)
    assert len(said) == 3
    assert said[1].startswith("client-0001: took part in 1 of 2 rounds; the ledger is asked for epsilon ")
    assert " by the orders that it replied to, and the server counts " in said[1]


def test_only_a_client_that_replied_has_spent_what_the_server_counts() -> None:
    for absence in Absence:
        there, gone, _ = found({"client-0001": absence.value})
        assert there.spent == there.counted == gone.counted > 0
        unreached = absence in (Absence.SILENT, Absence.REFUSED)
        assert gone.spent == (0 if unreached else gone.counted), absence
