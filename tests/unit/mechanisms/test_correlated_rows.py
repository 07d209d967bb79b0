"""Noise correlated over rounds: a row has one total, lost rows have one rule, and restarts change nothing.

The attack that it must withstand: a party that has one round noised twice, over two sets of clients. With the
same noise the difference of the two totals is a client's value, and other noise would be a second release.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_two_server import (
    EVERYBODY,
    FEWER,
    NOISED,
    NOISED_SENDS,
    Holder,
    agreement,
    expected,
    padded,
    part,
    requested,
    summed,
)

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery, Schedule, Sum, Total, ValueSpec
from securefl.core.errors import ConfigError, DataError, LocalProtocolError
from securefl.core.grid import Grid
from securefl.core.messages import REFUSED
from securefl.core.release import KEY_HOLDER, PARTIES, SERVER
from securefl.core.wire import Header
from securefl.deployment.files import held
from securefl.deployment.session_store import ACTS
from securefl.dp.correlated import CorrelatedNoise
from securefl.dp.noise import Source
from securefl.engine.server import _again
from securefl.mechanisms.charges import Protection, events_of
from securefl.mechanisms.registry import require_mechanism
from securefl.mechanisms.totals import with_noise
from securefl.storage.counter import Counter
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord

ROUNDS, APART = 100, 20
SPEC = ValueSpec(
    name="own",
    reduction="sum",
    reveals="it",
    accumulates=True,
    sensitivity={("client", "zero-out"): 1.0},
    grid=Grid(step=2.0**-12, bound=64.0),
)
PLAN = Plan(
    unit="client",
    adjacency="zero-out",
    delta=1e-5,
    max_rounds=ROUNDS,
    noise="central",
    noise_multiplier=3.0,
    separation=APART,
    coefficients=CorrelatedNoise.optimised(rounds=ROUNDS, separation=APART).coefficients,
    adversaries=("others",),
)
BUFFERED = replace(PLAN, coefficients=(1.0, 0.499), decays=(0.8938,))


class Drawer:
    """The server's noise, from a journal on disk that can be opened again."""

    def __init__(self, path: Path, plan: Plan = PLAN, spec: ValueSpec = SPEC) -> None:
        self.path, self.plan, self.spec = path, plan, spec
        self.journal = Journal(path, random=lambda count: b"s" * count)

    def restart(self) -> None:
        self.journal.close()
        self.journal = Journal(self.path)

    def noise(self, number: int, total: float = 0.0, size: int = 40, stage: int = 0) -> Any:
        """The noise on this total in a round. None if it is refused."""
        asked = CohortQuery(cohort=(0,), broadcast=np.zeros(1, np.float32), sums=(Sum(self.spec, size),))
        totals = {self.spec.name: Total(np.full(size, total), 1.0)}
        answers = Answers(survivors=(0,), totals=totals, per_client={})
        record, at = OwnRecord(SERVER, self.journal), Header(bytes(32), number, 0, stage)
        found = with_noise(self.plan, record, asked, answers, at)
        return None if found is None else found.totals[self.spec.name].value - total


@pytest.fixture
def drawer(tmp_path: Path) -> Drawer:
    return Drawer(tmp_path / "acts.sqlite")


@every("restarted", (False, True))
def test_a_row_has_one_total(restarted: bool, tmp_path: Path) -> None:
    """A restart may come after the noise was drawn, and before the total left."""
    drawer = Drawer(tmp_path / "acts.sqlite")
    first = drawer.noise(1, total=5.0)
    if restarted:
        drawer.restart()
    assert drawer.noise(1, total=4.0) is None, "over another set of clients"
    assert drawer.noise(1, total=4.0, stage=1) is None, "asked again at another place of the round"
    assert np.array_equal(drawer.noise(1, total=5.0), first), "the same total, the same noise"


def test_a_row_below_another_gets_no_noise(drawer: Drawer) -> None:
    """The noise of row 1 went into the total of row 2, as that of a lost row."""
    drawer.noise(2)
    with pytest.raises(LocalProtocolError, match="rounds go up"):
        drawer.noise(1)
    at = Header(bytes(32), 1, 0, 0)
    assert drawer.journal.row(SERVER, at, "own", b"digest") is None
    assert drawer.journal.row(SERVER, at, "another", b"digest") == 0


@every("plan", (PLAN, BUFFERED))
def test_prefix_sums_in_a_trace_of_lost_rounds_retries_and_restarts(plan: Plan, tmp_path: Path) -> None:
    """By the noise that is really added: at most 0.40 of the error of independent noise at equal epsilon."""
    drawer = Drawer(tmp_path / "acts.sqlite", plan)
    found, lost = [], {3, 17, 18, 40, 41, 42, 77}
    for number in range(1, ROUNDS + 1):
        if number in lost:
            continue
        first = drawer.noise(number, total=float(number), size=200)
        if number % 10 == 0:
            drawer.restart()
            assert np.array_equal(drawer.noise(number, total=float(number), size=200), first)
            assert drawer.noise(number, total=-1.0) is None
        found.append(first)
    # The charge is one Gaussian of multiplier 3 a release, of which independent noise has a deviation of 3.
    alone = 3.0 * np.sqrt((len(found) + 1) / 2)
    error = np.sqrt((np.cumsum(found, 0) ** 2).mean()) / alone
    assert error <= 0.40
    assert error >= 0.25, "noise that is charged must be there"
    assert events_of(plan, [SPEC], "others", ROUNDS) == {Protection(plan, SPEC).charge().others: 5}


@every("plan", (PLAN, BUFFERED))
def test_a_lost_row_leaves_its_noise_to_the_next(plan: Plan, tmp_path: Path) -> None:
    """Two drawers of one secret: their prefix sums agree wherever both have a total."""
    whole, lossy = Drawer(tmp_path / "a", plan), Drawer(tmp_path / "b", plan)
    both = np.cumsum([whole.noise(number) for number in range(1, 7)], 0)
    first, last = lossy.noise(2), lossy.noise(6)
    assert np.array_equal(first, both[1])
    assert np.array_equal(first + last, both[5])


def test_a_total_lost_after_its_row_was_bound_takes_its_noise_with_it(tmp_path: Path) -> None:
    """It may have been seen, so no second total gets its noise."""
    whole, lossy = Drawer(tmp_path / "a"), Drawer(tmp_path / "b")
    rows = [whole.noise(number) for number in range(1, 5)]
    assert np.array_equal([lossy.noise(number) for number in range(1, 4)], rows[:3])
    assert lossy.noise(3, total=1.0) is None
    assert np.array_equal(lossy.noise(4, total=1.0), rows[3]), "without that of the third"


@every(("lost", "error"), [(0, 0.36), (1, 0.40), (3, 0.46), (7, 0.57)])
def test_the_error_grows_with_totals_that_are_lost_so(lost: int, error: float) -> None:
    """PROOF.md and the page of mechanisms quote it: the error of sums over the other rows, by algebra."""
    noise, rng, found = PLAN.correlation(SPEC), np.random.default_rng(1), []
    d = noise.inverse(ROUNDS) * noise.column_norm
    rows = np.array([np.r_[d[: t + 1][::-1], np.zeros(ROUNDS - 1 - t)] for t in range(ROUNDS)])
    for _ in range(200):
        kept = np.sort(rng.choice(ROUNDS, ROUNDS - lost, replace=False))
        variances = (np.cumsum(rows[kept], 0) ** 2).sum(1)
        found.append(np.sqrt(variances.mean() / ((ROUNDS + 1) / 2)))
    assert np.mean(found) == pytest.approx(error, abs=0.01)


@every("plan", (PLAN, BUFFERED))
def test_c_times_the_noise_is_as_wide_as_it_is_charged(plan: Plan, tmp_path: Path) -> None:
    """C n = z, of 3 times the sensitivity times the column norm. 60,000 entries show it to 1 %."""
    drawer, noise = Drawer(tmp_path / "acts", plan), plan.correlation(SPEC)
    c, rows = noise.column(3), np.array([drawer.noise(number, size=20_000) for number in range(1, 4)])
    z = [sum(c[j] * rows[t - j] for j in range(t + 1)) for t in range(3)]
    assert np.std(z) == pytest.approx(3.0 * noise.column_norm, rel=0.01)


def test_a_late_row_draws_each_row_before_it_once(drawer: Drawer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It drew every row again for each lost one: 5,050 rows in round 100, and a key holder then timed out."""
    drawn = []
    normal = Source.normal

    def counted(own: Source, count: int) -> Any:
        drawn.append(count)
        return normal(own, count)

    monkeypatch.setattr(Source, "normal", counted)
    drawer.noise(ROUNDS)
    assert drawn == [40] * ROUNDS


def test_each_row_value_and_secret_has_a_z_of_its_own(tmp_path: Path) -> None:
    first = Drawer(tmp_path / "a").noise(1, size=2000)
    drawer = Drawer(tmp_path / "b")
    drawer.noise(1, size=2000)
    second = drawer.noise(2, size=2000) + PLAN.coefficients[1] * first  # C times the noise
    drawer.spec = replace(SPEC, name="another")
    other = Drawer(tmp_path / "c")
    other.journal = Journal(random=lambda count: b"t" * count)
    for z in (second, drawer.noise(3, size=2000), other.noise(1, size=2000)):
        assert abs(np.corrcoef(first, z)[0, 1]) < 0.15


@every(("size", "alike"), ((10_000, True), (10_001, False)))
def test_totals_of_another_length_have_rows_of_their_own(size: int, alike: bool, tmp_path: Path) -> None:
    """A server chooses the length. 34 of 10,000 values were others in a longer stream, and cancelled nothing.

    0.06 are six deviations of the correlation of independent values.
    """
    drawer = Drawer(tmp_path / str(size))
    first, second = drawer.noise(1, size=10_000), drawer.noise(2, size=size)[:10_000]
    correlation = np.corrcoef(first, second)[0, 1]
    assert correlation < -0.3 if alike else abs(correlation) < 0.06


def test_one_band_is_independent_noise_bit_for_bit(tmp_path: Path) -> None:
    plans = (replace(PLAN, coefficients=(1.0,)), replace(PLAN, coefficients=(1.0,), separation=1))
    found = []
    for plan in plans:
        one = Drawer(tmp_path / str(plan.separation), plan)
        found.append([one.noise(1), one.noise(4), Protection(plan, SPEC).mechanism.headroom()])
        assert one.noise(4, total=1.0) is not None, "independent noise: another total is another release"
    assert all(np.array_equal(mine, other) for mine, other in zip(*found, strict=True))


@every(
    "schedule",
    [Schedule(period=2), Schedule(initial=1), Schedule(extra=1), Schedule(once=True), Schedule(period=0)],
)
def test_other_sums_than_those_of_each_round_have_independent_noise(schedule: Schedule) -> None:
    spec = replace(SPEC, schedule=schedule)
    assert not Protection(PLAN, spec).mechanism.correlation.correlated
    assert PLAN.apart(spec) == 1
    assert spec.asked(ROUNDS, APART) == schedule.asked(ROUNDS)
    often = replace(PLAN, separation=1, coefficients=(1.0,))
    for party in PARTIES:
        charged = events_of(PLAN, [spec], party, ROUNDS)
        assert charged == events_of(often, [spec], party, ROUNDS), "nothing counts on a rest"


def test_a_sum_that_no_model_adds_up_has_independent_noise_and_its_separation() -> None:
    """Correlated noise cancels in sums over rounds. In a total that is used once it is more of it."""
    added, once = (Protection(PLAN, replace(SPEC, accumulates=own)).mechanism for own in (True, False))
    assert (added.correlation.correlated, once.correlation.correlated) == (True, False)
    assert once.sigma == added.sigma / added.correlation.column_norm
    assert PLAN.apart(once.spec) == APART
    assert once.correlation.max_participations == added.correlation.max_participations == 5
    assert added.deviation(1) / once.deviation(1) == pytest.approx(added.correlation.error(ROUNDS))


@every("noise", ("local", "distributed"))
def test_noise_of_clients_cannot_be_correlated(noise: str) -> None:
    plan = replace(PLAN, noise=noise, corrupt=0.0)
    with pytest.raises(ConfigError, match="clients of earlier cohorts drew theirs"):
        require_mechanism(plan)
    require_mechanism(replace(plan, coefficients=(1.0,)))
    require_mechanism(replace(plan, noise="central"))


def test_a_total_that_may_be_open_is_not_asked_for_again() -> None:
    """A retry would be a second total of the row, which gets no noise, and clients would be charged."""
    assert not _again(Protection(PLAN, SPEC))
    assert _again(Protection(replace(PLAN, coefficients=(1.0,)), SPEC))


# The key holder ------------------------------------------------------------------------------------


def holder_of(path: Path, plan: Plan, **given: Any) -> Holder:
    journal = Journal(path, **given)
    own = part(plan=plan, specs=NOISED_SENDS, row=OwnRecord(KEY_HOLDER, journal).row)
    return Holder(journal, own)


HIDDEN = replace(NOISED, separation=3, coefficients=(1.0, 0.6, 0.5))


def noise_of(holder: Holder, number: int, **changed: Any) -> Any:
    of = agreement(number=number, **changed)
    totals = summed(of, {k: padded(of, k) for k in EVERYBODY}, holder).totals
    return totals["update"] - expected(of)["update"]


def test_a_key_holder_opens_one_request_a_row(tmp_path: Path) -> None:
    """It never sees a total: question, set and boxes stand for it. A retry would be a second question."""
    path = tmp_path / "acts"
    holder = holder_of(path, HIDDEN)
    of, again = agreement(), agreement(2, again=1)
    first = holder.asked(of, requested(of))
    for _ in range(2):
        for other, members in ((again, FEWER), (again, EVERYBODY), (agreement(3, ask=1), FEWER)):
            reply = holder.asked(other, requested(other, members))
            assert (reply.pads, reply.bad) == (REFUSED, ())
        assert holder.asked(of, requested(of)) == first, "the same request, the same bytes"
        holder.journal.close()
        holder = holder_of(path, HIDDEN)
    alone = holder_of(tmp_path / "independent", replace(HIDDEN, coefficients=(1.0,)))
    for of in (agreement(), again):  # with a charge of its own
        assert alone.asked(of, requested(of)).pads != REFUSED


@every("lost", ("the file", "an older copy"))
def test_a_key_holder_that_lost_its_rows_and_their_secret_draws_no_more(lost: str, tmp_path: Path) -> None:
    """Its counter, outside of its folder, knows of later acts. With another z a row would have two totals."""
    counter, folder, of = Counter(tmp_path / "counter"), tmp_path / "party", agreement()
    file = folder / ACTS
    folder.mkdir(mode=0o700)
    with held(KEY_HOLDER, folder, counter, None, new=True) as files:
        files.diary.enter(of.header.session, "a study")
        files.note()
    older = file.read_bytes()
    with held(KEY_HOLDER, folder, counter, None) as files:
        own = part(plan=HIDDEN, specs=NOISED_SENDS, row=OwnRecord(KEY_HOLDER, files.journal).row)
        assert Holder(files.journal, own).asked(of, requested(of)).pads != REFUSED
        files.note()
    if lost == "the file":
        file.unlink()
    else:
        file.write_bytes(older)
    with pytest.raises(DataError), held(KEY_HOLDER, folder, counter, None):
        pytest.fail("it went on")


def test_noise_of_a_key_holder_hangs_together_over_rounds(tmp_path: Path) -> None:
    """Its totals of 11 entries: C times the noise of all rows is z, and a lost row leaves its to the next."""
    whole = holder_of(tmp_path / "whole", HIDDEN)
    lossy = holder_of(tmp_path / "lossy", HIDDEN)
    rows = [noise_of(whole, number) for number in range(1, 6)]
    own = [noise_of(lossy, 1), noise_of(lossy, 4)]
    assert np.array_equal(own[0], rows[0])
    assert np.array_equal(own[1], sum(rows[1:4]))
    z = rows[4] + 0.6 * rows[3] + 0.5 * rows[2]
    sigma = Protection(HIDDEN, NOISED_SENDS[0]).mechanism.sigma
    assert sigma == pytest.approx(3.0 * 64 * np.sqrt(1.61))
    assert np.abs(z).max() < 6 * sigma
    assert np.sqrt((z**2).mean()) > sigma / 3
