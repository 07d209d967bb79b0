"""A party's folder: what it agrees to, what it counts, and folders that are not what they were."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.bad_files import BAD, put
from support.every import every
from support.party_folders import CLEAR, FEDAVG, MASKED, TWO_SERVER, Asking, enrolled, made, names, part, pin
from support.private_studies import DPSGD
from support.tiny_study import text, with_privacy

from securefl.algorithm.clients import ClientContext
from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError, DataError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.data import array_files
from securefl.deployment import folder as folders
from securefl.deployment import keys, pinning, plan_file
from securefl.deployment.party import PartySession
from securefl.deployment.party_setup import OwnData, data_of
from securefl.deployment.roster import line_of
from securefl.deployment.status import status
from securefl.engine.party.clients import ClientParty
from securefl.study.backends import ArmContext, OneProcess
from securefl.study.config import note_home
from securefl.training.cohorts import Batched
from securefl.training.jobs import usable

pytestmark = pytest.mark.usefixtures("built_once")

SENT = 2
"""What a client sends in the first round of a session: its update, and its count, which it sends once."""


@contextmanager
def serving(root: Path, study: str = CLEAR, **options: str) -> Iterator[Asking]:
    """All parties of enrolled folders in this process, and their server."""
    with ExitStack() as stack:
        answers = {}
        for name in sorted(set(names(made(study))) - {SERVER}):
            party = stack.enter_context(folders.opened(root / name, **options))
            answers[name] = party.session().answer

        def exchange(sent: Mapping[str, bytes], entering: bool) -> dict[str, bytes]:
            return {name: answers[name](data) for name, data in sent.items()}

        yield Asking(root, exchange, study)


def played(root: Path, study: str = CLEAR, rounds: int = 1) -> Asking:
    with serving(root, study) as asking:
        assert asking.enter() == tuple(asking.parties)
        for number in range(1, rounds + 1):
            assert asking.play(number) == list(range(made(study).world.problem.clients))
    return asking


def test_one_ledger_counts_what_leaves_in_every_session_and_study(tmp_path: Path) -> None:
    clear = CLEAR.replace("clients = 3", "clients = 4")
    roster = enrolled(tmp_path, clear)
    for _ in range(2):
        played(tmp_path, clear)
    # another study in the same terms: another plan for the same folder
    for name in names(made(MASKED)):
        folders.renew(tmp_path / name, made(MASKED), part(made(MASKED), name, tmp_path / "counters"))
        pin(tmp_path / name, roster)
    played(tmp_path, MASKED)
    said = status(tmp_path / "client-0000")
    assert said["releases"]["committed"] == 3 * SENT
    assert said["sessions"]["count"] == 3


def test_a_schedule_of_one_study_does_not_bar_the_next() -> None:
    terms = plan_file.HolderTerms.of(made(CLEAR).plan).ledger()
    scheduled = replace(terms, max_releases={"update": 2})
    assert terms.bears(scheduled)
    assert terms.bears(terms)
    assert not scheduled.bears(terms)
    assert not terms.bears(replace(scheduled, delta=1e-9))
    assert not terms.bears(replace(scheduled, budget=1.0))


@every(
    ("old", "new"),
    [
        ("delta = 1e-4", "delta = 0.00001"),
        ('adjacency = "replace-one"', 'adjacency = "add-remove"'),
        ("budget = inf", "budget = 3.0"),
    ],
)
def test_a_study_in_other_terms_is_refused(tmp_path: Path, old: str, new: str) -> None:
    noiseless = re.sub(r"(?m)^adversaries = .*$", "adversaries = []", CLEAR)
    of, other = made(noiseless), made(noiseless.replace(old, new))
    folders.init(tmp_path / "p", of, part(of, "client-0000", tmp_path / "counters"))
    with pytest.raises(ConfigError, match=f"{old.split()[0]} = .* in place of"):
        folders.renew(tmp_path / "p", other, part(other, "client-0000", tmp_path / "counters"))
    assert plan_file.read(tmp_path / "p").plan == of.plan


@every("which", ["p", "counters/client-0000"])
def test_a_folder_of_another_user_is_refused(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who owns it renames the keys in it, and the file with the number of sessions."""
    of = made()
    (tmp_path / which).mkdir(parents=True)
    stat, theirs = Path.stat, tmp_path / which

    def of_mallory(path: Path, **more: Any) -> Any:
        found = stat(path, **more)
        if path != theirs:
            return found
        return os.stat_result([*found[:4], 54340, *found[5:10]])

    monkeypatch.setattr(Path, "stat", of_mallory)
    with pytest.raises(ConfigError, match="54340"):
        folders.init(tmp_path / "p", of, part(of, "client-0000", tmp_path / "counters"))
    assert not list(theirs.iterdir())


def test_a_part_that_the_study_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="from 0 to 2"):
        folders.init(tmp_path / "p", made(), part(made(), "client-0003", tmp_path / "counters"))
    with pytest.raises(ConfigError, match="nothing for it to open"):
        folders.init(tmp_path / "p", made(), part(made(), KEY_HOLDER, tmp_path / "counters"))
    assert not (tmp_path / "p").exists()


def test_an_init_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, home, counters = made(), tmp_path / "new" / "p", tmp_path / "counters"
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        folders.init(home, of, part(of, "client-0000", tmp_path / "file"))
    for where in ("folder._write_study", "keys.make", "plan_file.write"):
        for there in ([], [home.parent, home]):  # an empty folder of the owner's stays
            for folder in there:
                folder.mkdir(exist_ok=True)
            with monkeypatch.context() as failing:
                failing.setattr(f"securefl.deployment.{where}", fail)
                with pytest.raises(DataError):
                    folders.init(home, of, part(of, "client-0000", counters))
            assert sorted(tmp_path.rglob("*")) == [tmp_path / "file", *there]
            shutil.rmtree(home.parent, ignore_errors=True)
    folders.init(home, of, part(of, "client-0000", counters))
    assert (counters / "client-0000").stat().st_mode & 0o777 == 0o700
    assert home.stat().st_mode & 0o777 == 0o710


def test_a_folder_is_one_partys_for_ever_and_says_what_to_do(tmp_path: Path) -> None:
    of = made()
    folders.init(tmp_path / "p", of, part(of, "client-0000", tmp_path / "counters"))
    with pytest.raises(ConfigError, match="would not be counted"):
        folders.renew(tmp_path / "p", of, part(of, "client-0001", tmp_path / "counters"))
    for name, said in (("client-0000", "--again"), ("client-0001", "are client-0000's. Choose another")):
        with pytest.raises(ConfigError, match=said):
            folders.init(tmp_path / "p", of, part(of, name, tmp_path / "elsewhere"))
    (tmp_path / "p" / "party.toml").unlink()
    with pytest.raises(ConfigError, match="an interrupted init"):
        folders.init(tmp_path / "p", of, part(of, "client-0000", tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match="another party has"):
        folders.init(tmp_path / "q", of, part(of, "client-0000", tmp_path / "counters"))


# Backups ----------------------------------------------------------------------------------------


def copied(home: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(home, to)


def test_a_folder_from_a_backup_is_refused(tmp_path: Path) -> None:
    enrolled(tmp_path, TWO_SERVER)
    who = ("client-0001", KEY_HOLDER)
    for name in who:
        copied(tmp_path / name, tmp_path / "backup" / name)
    played(tmp_path, TWO_SERVER)
    for name in who:
        copied(tmp_path / name, tmp_path / "newest" / name)
        copied(tmp_path / "backup" / name, tmp_path / name)
        with pytest.raises(DataError, match=r"older copy.*newest"), folders.opened(tmp_path / name):
            pass
        copied(tmp_path / "newest" / name, tmp_path / name)
    for number in range(4):
        folders.allow(tmp_path / f"client-{number:04d}", 2)
    played(tmp_path, TWO_SERVER)


def test_a_restored_folder_says_how_it_gets_its_study_s_place_again(tmp_path: Path) -> None:
    enrolled(tmp_path)
    home, backup = tmp_path / "client-0000", tmp_path / "backup"
    note_home(home, tmp_path)
    copied(home, backup)
    home.rename(tmp_path / "lost")  # a folder that is there keeps its number from the restored one
    copied(backup, home)
    with pytest.raises(ConfigError) as caught, folders.opened(home):
        pass
    ways = ("--trust-code", f"party init {home}", "--again", "remove")
    assert all(way in str(caught.value) for way in ways)
    with folders.opened(home, trusted=[home]):
        pass
    of = made()
    of = replace(of, study=replace(of.study, home=tmp_path))
    folders.renew(home, of, part(of, "client-0000", tmp_path / "counters"))
    with folders.opened(home):
        pass


def test_a_session_that_fails_as_it_begins_bars_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled(tmp_path)
    with serving(tmp_path) as asking:
        asking.enter()
        assert asking.play(1) == [0, 1, 2]
        with monkeypatch.context() as failing:
            failing.setattr(ClientParty, "enter", fail)
            assert Asking(tmp_path, asking.exchange, CLEAR).enter() == ()
    played(tmp_path)


def fail(*anything: object, **named: object) -> None:
    raise DataError("Expected room on the disk, got none.")


def test_what_a_request_costs_does_not_grow_with_the_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled(tmp_path)
    with folders.opened(tmp_path / "client-0000") as party:
        answer, looked = party.session().answer, []
        monkeypatch.setattr("securefl.storage.database.check", lambda *parts: looked.append(parts))
        for number in range(30):
            party.files.diary.enter(number.to_bytes(32, "big"), "a session")
            answer(b"anything")
    assert len(looked) == 30


@every("notes", [True, False])
def test_a_file_of_another_folder_is_refused(notes: bool, tmp_path: Path) -> None:
    enrolled(tmp_path)
    home = tmp_path / "client-0000"
    for name in ("ledger.sqlite", *(["ledger.sqlite-head"] if notes else [])):
        shutil.copy(tmp_path / "client-0001" / name, home / name)
    with pytest.raises(DataError), folders.opened(home):
        pass


def test_the_file_of_another_key_holder_is_refused(tmp_path: Path) -> None:
    """It has no ledger, whose chain would tell it: its file has the name of the party."""
    enrolled(tmp_path, TWO_SERVER)
    shutil.copy(tmp_path / SERVER / "acts.sqlite", tmp_path / KEY_HOLDER / "acts.sqlite")
    with pytest.raises(DataError, match="got that of"), folders.opened(tmp_path / KEY_HOLDER):
        pass


# Records ----------------------------------------------------------------------------------------


X, Y = np.zeros((2, 1, 8, 8), np.float32), np.zeros(2, np.int64)


def write_records(file: Path, **changed: Any) -> Path:
    x, y = made().world.records[0]
    np.savez(file, **{"x": x, "y": y, **changed})
    return file


def test_changed_records_are_refused_and_noted_as_new_by_the_owners_word(tmp_path: Path) -> None:
    own, of = write_records(tmp_path / "own.npz"), made()
    roster = enrolled(tmp_path)
    home = tmp_path / "client-0000"
    folders.renew(home, of, part(of, "client-0000", tmp_path / "counters", records=own))
    played(tmp_path)  # the same records, from a file
    x, _ = of.world.records[0]
    write_records(own, x=x + 1)
    with pytest.raises(DataError, match="--new-records WHY"), folders.opened(home):
        pass
    with folders.opened(home, new_records="a sensor was mended"):
        pass
    played(tmp_path)
    said = status(home)
    assert [one["why"] for one in said["records"]] == ["as the folder was made", "a sensor was mended"]
    assert len({one["digest"] for one in said["records"]}) == 2
    # the ledger was not begun anew
    assert said["releases"]["committed"] == 2 * SENT
    assert roster.exists()


@every(
    ("x", "y"),
    [
        (X[..., :3], Y),
        (X[0, 0, 0], Y),
        (X, Y[:1]),
        (X + np.nan, Y),
        (X, Y + 10),
        (X, Y + 0.5),
        (X.astype(object), Y),
    ],
)
def test_own_records_that_do_not_fit_are_refused(tmp_path: Path, x: Any, y: Any) -> None:
    with pytest.raises(DataError):
        data_of(made(), 0, str(write_records(tmp_path / "own.npz", x=x, y=y)))


CLAIMED = with_privacy(
    text(FEDAVG, clients=3, rounds=1, non_private="[]", extra=DPSGD), {"adjacency": '"add-remove"'}
)
"""A study under a finite epsilon, by private training."""
ODD: dict[str, tuple[str, Any]] = {
    "nan": ("x", np.nan),
    "an infinity": ("x", -np.inf),
    "beyond float32": ("x", 1e300),
    "a class above": ("y", 10),
    "a class below": ("y", -1),
    "no class, so all classes are floats": ("y", np.nan),
    "half a class": ("y", 0.5),
    "a class beyond int64": ("y", np.uint64(2**63 + 3)),
    "an infinite class": ("y", np.inf),
}


def with_odd(folder: Path, odd: str) -> Path:
    """The first client's records and an odd one, in a file."""
    whole = dict(zip("xy", made(CLAIMED).world.records[0], strict=True))
    which, value = ODD[odd]
    one = {name: array[:1] for name, array in whole.items()}
    one[which] = np.full(one[which].shape, value)
    whole["y"] = whole["y"].astype(one["y"].dtype)
    np.savez(folder / "own.npz", **{name: np.concatenate([whole[name], one[name]]) for name in whole})
    return folder / "own.npz"


@every("odd", ODD)
def test_under_a_claim_an_odd_record_is_one_unusable_record(odd: str, tmp_path: Path) -> None:
    """An error of the file told that the record is there. All other records stay as they are."""
    of = made(CLAIMED)
    x, y = of.world.records[0]
    found = data_of(of, 0, str(with_odd(tmp_path, odd)))
    assert len(found.records[0]) == len(x) + 1
    given: dict[str, Any] = {"client": 0, "round": 1, "public": {}, "rng": np.random.default_rng(0)}
    broadcast = of.world.problem.initial
    context = ClientContext(x=found.records[0], y=found.records[1], broadcast=broadcast, **given)
    left = usable(of.world.problem, context)
    assert np.array_equal(left.x, x)
    assert np.array_equal(left.y, y)


@every("odd", ["nan", "no class, so all classes are floats"])
def test_under_a_claim_a_party_with_an_odd_record_answers_as_without(odd: str, tmp_path: Path) -> None:
    """The second attack, through the folder: it was refused when it was made, and when it was opened."""
    of = made(CLAIMED)
    enrolled(tmp_path, CLAIMED)
    own = with_odd(tmp_path, odd)
    home = tmp_path / "client-0000"
    folders.renew(home, of, part(of, "client-0000", tmp_path / "counters", records=own))
    with folders.opened(home, new_records="a record more"):
        pass
    played(tmp_path, CLAIMED)
    said = status(home)
    assert said["refusals"] == []
    assert said["releases"]["committed"] == SENT


@every("content", [b"", b"PK\x03\x04cut", b"\x93NUMPY\x01\x00"])
def test_a_file_that_holds_no_records_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"own.npz: expected arrays as \.npz"):
        data_of(made(), 0, str(tmp_path / "own.npz"))


def test_records_that_unpack_to_too_much_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "own.npz", x=np.zeros((2**14, 8)), y=np.zeros(2**14))
    of = made()
    monkeypatch.setattr(array_files, "LARGEST", 2**16)
    with pytest.raises(DataError, match="at most 65,536 bytes of arrays, got 1,"):
        data_of(of, 0, str(tmp_path / "own.npz"))


@every("what", BAD)
def test_records_that_are_no_file_are_refused_at_once(what: str, tmp_path: Path) -> None:
    said = put(tmp_path / "own.npz", what)
    with pytest.raises(DataError) as refused:
        data_of(made(), 0, str(tmp_path / "own.npz"))
    assert str(refused.value).startswith(f"{tmp_path / 'own.npz'}: Expected ")
    assert said in str(refused.value)


# Keys and roster --------------------------------------------------------------------------------


def test_after_a_rotation_the_old_line_is_void(tmp_path: Path) -> None:
    roster = enrolled(tmp_path)
    played(tmp_path)
    home = tmp_path / "client-0001"
    old = keys.read(home, "client-0001").member()
    new = pinning.rotate(home).member()
    assert {old.identity, old.channel}.isdisjoint({new.identity, new.channel})
    with pytest.raises(ConfigError, match="pinned roster"), folders.opened(home):
        pass
    # the old roster does not come back
    with pytest.raises(ConfigError, match="got other keys"):
        pin(home, roster)
    roster.write_text(roster.read_text().replace(line_of(old), line_of(new)))
    pin(home, roster)
    with serving(tmp_path) as asking:
        # the server and two clients still have the old roster, and this party another
        assert asking.enter() == ("client-0000", "client-0002")
    assert "roster: " in status(home)["refusals"][0]["why"]
    for name in names(made()):
        pin(tmp_path / name, roster)
    played(tmp_path)
    assert status(home)["releases"]["committed"] == 2 * SENT


def test_a_roster_that_was_changed_after_it_was_pinned_is_refused(tmp_path: Path) -> None:
    roster = enrolled(tmp_path)
    home = tmp_path / "client-0001"
    other = keys.make(tmp_path / "client-0002", "client-0002").member()
    lines = [line for line in roster.read_text().splitlines() if "client-0002" not in line]
    (home / "roster.jsonl").write_text("\n".join([*lines, line_of(other)]))
    with pytest.raises(ConfigError, match="was changed since"), folders.opened(home):
        pass


def test_keys_that_others_may_have_read_are_refused(tmp_path: Path) -> None:
    own = keys.make(tmp_path, "client-0000")
    assert keys.read(tmp_path, "client-0000").member() == own.member()
    (tmp_path / "identity.key").chmod(0o640)
    with pytest.raises(ConfigError, match="other users may have read"):
        keys.read(tmp_path, "client-0000")


# The plan file ----------------------------------------------------------------------------------


def test_a_plan_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    enrolled(tmp_path)
    home = tmp_path / "client-0000"
    text = (home / "party.toml").read_text()
    for old, new, said in (
        ("max_retries = 0", "max_retries = 9", "expected the plan|Expected the plan"),
        ('name = "client-0000"', 'name = "client-0001"', "newest keys of client-0001"),
        ("max_retries = 0", "max_tries = 0", "Unknown key `max_tries`"),
        ('unit = "record"', 'unit = "people"', "people"),
        ("seed = 3", "", "Missing key `seed`"),
    ):
        (home / "party.toml").write_text(text.replace(old, new, 1))
        with pytest.raises(ConfigError, match=said), folders.opened(home):
            pass
    (home / "party.toml").write_text(text)
    with folders.opened(home):
        pass


def test_a_folder_of_the_server_alone_has_no_ledger(tmp_path: Path) -> None:
    folders.init(tmp_path / SERVER, made(), part(made(), SERVER, tmp_path / "counters"))
    assert not (tmp_path / SERVER / "ledger.sqlite").exists()
    assert "epsilon" not in status(tmp_path / SERVER)


def test_the_process_of_a_party_prepares_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled(tmp_path)
    monkeypatch.setattr("securefl.deployment.folder.single_thread", lambda: None)
    monkeypatch.setattr(PartySession, "prepare", lambda own: own.name == "client-0002")
    with folders.serving(tmp_path / "client-0002") as served:
        assert served.prepare()


def test_a_party_trains_in_passes_of_the_shape_that_a_simulation_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its bits could be others than those of the study that was simulated before."""
    monkeypatch.setattr("securefl.deployment.party_setup.ClientParty", lambda *_, trainer, **__: trainer)
    monkeypatch.setattr("securefl.study.backends.simulated", lambda *_, trainer, **__: trainer)
    monkeypatch.setattr(ArmContext, "scores", None)
    of, nothing = made(CLEAR), cast(Any, None)
    own = OwnData(nothing, None), nothing, nothing, Identity.generate("client-0000")
    party = of.client(0, *own, bytes(32), {}, lambda session: "")
    simulation = OneProcess().engine(
        ArmContext(
            study=of.study,
            arm=of.arm,
            world=of.world,
            algorithm=of.algorithm,
            plan=of.plan,
            ledger=nothing,
            journal=nothing,
            nonce=bytes(32),
            kept={},
            stands=(),
        )
    )
    assert isinstance(party, Batched)
    assert isinstance(simulation, Batched)
    assert party.slots == simulation.slots == 3, "the clients of the study"
