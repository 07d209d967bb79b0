"""A server that begins another session to read a client: the sum of a cohort, and then without its victim.

Each sum hides each client. Their difference is the victim's update, if its draws repeat.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.every import every
from support.hidden_plans import hidden
from support.lying_sessions import (
    BUT_VICTIM,
    CLIENTS,
    EVERYBODY,
    STUDY,
    VICTIM,
    Place,
    Vector,
)
from support.party_folders import CLEAR, MASKED, TWO_SERVER, enrolled, made, names, part, pin
from support.private_studies import client_level
from support.tiny_study import with_privacy

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.commands.party import party as command
from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError, DataError
from securefl.core.keys import SecretKey
from securefl.core.release import KEY_HOLDER, OTHERS, PARTIES, SERVER
from securefl.core.streams import own_stream
from securefl.deployment import folder as folders
from securefl.deployment import keys, pinning, plan_file
from securefl.deployment.roster import line_of
from securefl.deployment.status import status
from securefl.engine.party import contributing
from securefl.mechanisms.charges import Protection
from securefl.storage.counter import Counter
from securefl.study.config import parse

pytestmark = pytest.mark.usefixtures("built_once")

ALL, FEWER = (0, 1, 2, 3), (0, 1, 2)
"""Of `MASKED`: two cohorts that its plan allows, and that differ by one client."""


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> list[Vector]:
    """What the victim puts into its sums, as only its own machine knows it."""
    seen, protect = list[Vector](), contributing.protect

    def noting(protection, value, *, key, **more):  # type: ignore[no-untyped-def]
        if key.holder == f"client-{VICTIM:04d}":
            seen.append(np.array(value.clear))
        return protect(protection, value, key=key, **more)

    monkeypatch.setattr(contributing, "protect", noting)
    return seen


def used(root: Path, name: str = "client-0000") -> tuple[int, int]:
    found = status(root / name)["sessions"]["bare"]
    return found["used"], found["allowed"]


def test_a_second_session_without_its_victim_opens_no_sum(tmp_path: Path, own: list[Vector]) -> None:
    """It read the victim's update, with entries of 0.36, to 8.5e-6."""
    enrolled(tmp_path, STUDY)
    with closing(Place(tmp_path, STUDY)) as place:
        six = place.begin().total(EVERYBODY)
        assert six is not None
        second = place.begin()
        assert place.entered == ()
        assert second.total(BUT_VICTIM) is None
    said = status(tmp_path / "client-0000")
    assert used(tmp_path) == (1, 1)
    # The remedy of the refusal, as the owner reads it: with it the session opens, and yet it tells nothing
    # exact, since the draws of training are others.
    assert said["sessions"]["bare"]["next"] in said["refusals"][0]["why"]
    for name in names(made(STUDY))[:CLIENTS]:
        remedy = re.search(
            r"securefl party (allow \S+ --sessions 2)", status(tmp_path / name)["refusals"][0]["why"]
        )
        assert remedy is not None
        done = CliRunner().invoke(command, [*remedy[1].split(), "--yes"])
        assert done.exit_code == 0, done.output
    with closing(Place(tmp_path, STUDY)) as place:
        five = place.begin().total(BUT_VICTIM)
        assert five is not None
        assert np.abs(six - five - own[0]).max() > 0.02
        place.begin()
        assert place.entered == (f"client-{VICTIM:04d}",), "it had no order in the second session"
    assert used(tmp_path) == (2, 2)


def test_draws_of_training_follow_from_the_partys_secret_and_the_session() -> None:
    one, other = (Identity.of("client-0000", SecretKey(bytes([k] * 32))) for k in (1, 2))
    places = [
        (identity, bytes([s] * 32), *place)
        for identity in (one, other)
        for s in (1, 2)
        for place in [(1, 0), (2, 0), (1, 0, 1)]
    ]
    draws = [own_stream(identity.training(session), *place).random() for identity, session, *place in places]
    assert len(set(draws)) == len(places)
    again = Identity.of("client-0000", SecretKey(bytes([1] * 32)))
    assert own_stream(again.training(bytes([1] * 32)), 1, 0).random() == draws[0]


def test_a_session_that_goes_on_after_a_restart_is_no_new_one(tmp_path: Path) -> None:
    enrolled(tmp_path, MASKED)
    with closing(Place(tmp_path)) as place:
        first = place.begin()
        assert first.total(ALL) is not None
    with closing(Place(tmp_path)) as place:
        assert place.begin(first.nonce).total(ALL, 2) is not None
    assert used(tmp_path) == (1, 1)


def test_nothing_is_answered_in_round_0(tmp_path: Path) -> None:
    """Ledger and journal say 0 for no round, so each restart opened round 0 again, for any model.

    It was charged once. Whether a client was silent then told whether its value was the same as before.
    """
    enrolled(tmp_path, MASKED)
    with closing(Place(tmp_path)) as place:
        first = place.begin()
        assert first.total(ALL, 0) is None
        assert used(tmp_path) == (0, 1)
        assert first.total(ALL, 1) is not None


def test_sessions_whose_sums_are_noised_are_not_counted(tmp_path: Path) -> None:
    words = {"sum": '"masked"', "noise": '"distributed"', "dropout": "0.0", "corrupt": "0.0"}
    noised = client_level(**words, min_cohort_size="3", max_client_weight="0.51").text
    noised = noised.replace("clients = 6", "clients = 3")
    enrolled(tmp_path, noised)
    with closing(Place(tmp_path, noised)) as place:
        for _ in range(2):
            assert place.begin().total((0, 1, 2)) is not None
    assert used(tmp_path) == (0, 1)


def test_a_sum_is_bare_unless_noise_holds_against_who_sees_it() -> None:
    of = made(MASKED)
    assert [name for name, spec in of.spec.items() if Protection(of.plan, spec).bare] == ["update"], (
        "a count is public"
    )
    assert not Protection(made(CLEAR).plan, of.spec["update"]).bare
    one = {("record", "add-remove"): 1.0}
    step = ValueSpec(name="step", reduction="sum", reveals="", sensitivity=one, cohort=3)
    each = replace(step, reduction="none")
    noised = hidden(Plan(delta=1e-5, max_rounds=1, adjacency="add-remove"), 3, noise_multiplier=1.0)
    for noise, adversaries, found in (
        ("distributed", PARTIES, False),
        ("local", PARTIES, False),
        ("central", (OTHERS,), True),  # the server sees the total of each session without it
    ):
        plan = replace(noised, noise=noise, adversaries=adversaries)
        assert Protection(plan, step).bare is found, noise
        assert not Protection(plan, each).bare, "it is in no sum"


# Other ways to the same two sums ------------------------------------------------------------------


def test_a_session_counts_though_it_is_aborted_before_its_first_sum(tmp_path: Path) -> None:
    enrolled(tmp_path, MASKED)
    with closing(Place(tmp_path)) as place:
        first = place.begin()
        place.lost = True  # the server hears the orders' answers, and says that it lost them
        assert first.total(ALL) is None
        place.lost = False
        for _ in range(3):
            assert place.begin().total(FEWER) is None
            assert place.entered == ()
        # an order that came counts, also where nothing was computed
        assert used(tmp_path) == (1, 1)
        assert first.total(ALL, 2) is not None, "the session that was counted goes on"


def test_two_servers_with_one_key_have_one_session(tmp_path: Path) -> None:
    enrolled(tmp_path, MASKED)
    with closing(Place(tmp_path)) as place:
        one, other = place.begin(), place.begin()
        assert used(tmp_path) == (0, 1), "none has ordered a sum"
        assert other.total(ALL) is not None
        assert one.total(FEWER) is None
        for nonce in (None, one.nonce):
            assert place.begin(nonce).total(FEWER) is None
        assert place.begin(other.nonce).total(ALL, 2) is not None
    assert used(tmp_path) == (1, 1)


def test_a_party_is_killed_between_the_count_and_its_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled(tmp_path, MASKED)

    whole = contributing.Contributing.contribute_many

    def dying(self: Any, tasks: Any) -> Any:
        if any("update" in task.order.sums for task in tasks):
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, tasks)

    if (child := os.fork()) == 0:
        monkeypatch.setattr(contributing.Contributing, "contribute_many", dying)
        Place(tmp_path).begin().total(ALL)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert used(tmp_path) == (1, 1)
    with closing(Place(tmp_path)) as place:
        place.begin()
        assert place.entered == ("client-0001", "client-0002", "client-0003"), (
            "only client-0000 had its order"
        )


@every("back", ["of before its first order", "of before its session", "counter too"])
def test_a_folder_from_a_backup_forgets_no_session(back: str, tmp_path: Path) -> None:
    enrolled(tmp_path, MASKED)
    home, backup = tmp_path / "client-0000", tmp_path / "backup"
    if back != "of before its first order":
        shutil.copytree(home, backup)
    with closing(Place(tmp_path)) as place:
        first = place.begin()
        if not backup.exists():
            shutil.copytree(home, backup)
        first.total(ALL)
    shutil.rmtree(home)
    shutil.copytree(backup, home)
    if back == "counter too":  # it is lost, and the owner says falsely that the folder is the newest one
        shutil.rmtree(tmp_path / "counters" / "client-0000")
        with pytest.raises(ConfigError, match="party recount"), folders.opened(home):
            pass
        return
    with pytest.raises(DataError, match="older copy"), folders.opened(home):
        pass


def test_the_counter_notices_a_lost_count_alone(tmp_path: Path) -> None:
    """Ledger and journal are as new: a session counts before either has a row of it."""
    enrolled(tmp_path, MASKED)
    home = tmp_path / "client-0000"
    with folders.opened(home) as party:
        party.files.diary.enter(bytes(32), "s")
        party.files.note()
    shutil.copytree(home, tmp_path / "backup")
    with folders.opened(home) as party:
        party.files.diary.count(bytes(32))
        party.files.note()
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "backup", home)
    with pytest.raises(DataError, match="1 of them without noise"), folders.opened(home):
        pass


def test_a_copy_of_a_folder_on_a_second_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled(tmp_path, MASKED)
    with closing(Place(tmp_path)) as place:
        assert place.begin().total(ALL) is not None
    home, counter = tmp_path / "client-0000", tmp_path / "counters" / "client-0000"
    counter.rename(tmp_path / "on the first machine")
    with pytest.raises(ConfigError, match="copy from another machine"), folders.opened(home):
        pass
    assert "copy from another machine" in status(home)["counter"]["wrong"]
    # Its owner says that it is the only one: it has what the folder counted until then, and notes it at once.
    folders.recount(home)
    assert Counter(counter).place().bare == 1
    with closing(Place(tmp_path)) as place:
        place.begin()
        assert "client-0000" not in place.entered


@every("new", ["study", "keys"])
def test_another_plan_or_new_keys_are_no_new_count(new: str, tmp_path: Path) -> None:
    roster = enrolled(tmp_path, MASKED)
    with closing(Place(tmp_path)) as place:
        assert place.begin().total(ALL) is not None
    study = MASKED
    if new == "study":
        study = MASKED.replace('name = "tiny"', 'name = "tinier"')
        for name in names(made(study)):
            folders.renew(tmp_path / name, made(study), part(made(study), name, tmp_path / "counters"))
    else:
        for name in names(made(study)):
            pinning.rotate(tmp_path / name)
        lines = [line_of(keys.read(tmp_path / name, name).member()) for name in names(made(study))]
        roster.write_text("\n".join(lines))
    for name in names(made(study)):
        pin(tmp_path / name, roster)
    with closing(Place(tmp_path, study)) as place:
        assert place.begin().total(FEWER) is None
        assert place.entered == ()
    assert used(tmp_path) == (1, 1)
    for name in names(made(study))[:4]:
        folders.allow(tmp_path / name, 2)
    with closing(Place(tmp_path, study)) as place:
        assert place.begin().total(FEWER) is not None


def test_a_new_plan_keeps_the_number_and_its_owner_may_state_another(tmp_path: Path) -> None:
    of, home = made(MASKED), tmp_path / "client-0000"
    own = part(of, "client-0000", tmp_path)
    folders.init(home, of, replace(own, counter=tmp_path / "counter", sessions=3))
    for stated, kept in ((None, 3), (2, 2), (None, 2)):
        folders.renew(home, of, replace(own, counter=None, sessions=stated))
        assert plan_file.read(home).sessions == kept


# Numbers that are none ----------------------------------------------------------------------------


@every("number", [0, -1, True, 1.0])
def test_a_plan_of_no_sessions_is_refused(number: Any, tmp_path: Path) -> None:
    of, home = made(MASKED), tmp_path / "p"
    own = part(of, "client-0000", tmp_path)
    with pytest.raises(ConfigError, match="at least 1"):
        folders.init(home, of, replace(own, sessions=number))
    assert not home.exists()
    with pytest.raises(ConfigError, match="at least 1"):
        plan_file.require_sessions(number)


def test_a_study_does_not_say_how_many_sessions_its_clients_allow() -> None:
    with pytest.raises(ConfigError, match="securefl party init --sessions"):
        parse(with_privacy(MASKED, {"sessions": "0"}))


def test_who_has_no_records_has_no_sessions_to_agree_to(tmp_path: Path) -> None:
    enrolled(tmp_path, TWO_SERVER)
    for name in (SERVER, KEY_HOLDER):
        with pytest.raises(ConfigError, match="only clients"):
            folders.allow(tmp_path / name, 2)
        assert "bare" not in status(tmp_path / name)["sessions"]


def test_a_running_party_agrees_to_nothing_new(tmp_path: Path) -> None:
    enrolled(tmp_path, MASKED)
    home = tmp_path / "client-0000"
    for act in (lambda: folders.allow(home, 2), lambda: pinning.rotate(home)):
        with folders.opened(home), pytest.raises(ConfigError, match="in use"):
            act()
