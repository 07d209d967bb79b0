"""Which records a client tests on: by their own content, so that no record moves another."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_study import run, spied, study, with_privacy, world

from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.core.streams import public_seed
from securefl.data import Dataset, load
from securefl.data.sides import HOLDOUT, TEST, Sides, parted
from securefl.study.config import Study, parse
from securefl.training import mean_loss

LOSSES = '[[arm]]\nname = "x"\nprotocol = "pow_d"\nfraction = 1.0\n'


def records(n: int = 2000, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 3)).astype(np.float32), rng.integers(0, 4, n)


def holding(share: float, arm: str = LOSSES, **changes: Any) -> Study:
    return parse(study(arm, **changes).text.replace('"digits"', f'"digits"\nholdout = {share}'))


def held(x: Any, y: Any, share: float = 0.3, seed: int = 7, purpose: str = HOLDOUT) -> Any:
    return Sides(seed).apart(x, y, share, purpose)


def test_as_many_as_the_share_says() -> None:
    x, y = records()
    # Binomial(2000, 0.2): six standard deviations are 107, so this fails by chance once in 10^8 seeds.
    assert abs(held(x, y, 0.2).sum() - 400) < 107
    assert not held(x, y, 0.0).any()


def test_one_record_more_or_less_moves_no_other() -> None:
    x, y = records(200)
    whole = held(x, y)
    for gone in (0, 57, 199):
        assert np.array_equal(held(np.delete(x, gone, 0), np.delete(y, gone)), np.delete(whole, gone))
    order = np.random.default_rng(1).permutation(200)
    assert np.array_equal(held(x[order], y[order]), whole[order])


def test_another_key_label_or_purpose_parts_them_otherwise() -> None:
    x, y = records(200)
    whole = held(x, y)
    assert not np.array_equal(whole, held(x, y, seed=8))
    assert not np.array_equal(whole, held(x, y + 1))
    assert not np.array_equal(whole, held(x, y, purpose=TEST))
    first, second = (Sides(SecretKey(bytes([k]) * 32)).apart(x, y, 0.3, HOLDOUT) for k in (1, 2))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, Sides(SecretKey(bytes([1]) * 32)).apart(x, y, 0.3, TEST))
    assert held(x[:0], y[:0]).shape == (0,)


def test_purposes_are_independent() -> None:
    x, y = records(4000)
    test, out = held(x, y, 0.3, purpose=TEST), held(x, y, 0.3)
    # Binomial(4000, 0.09): six standard deviations are 109; false alarm once in 10^8 seeds.
    assert abs((test & out).sum() - 360) < 109


def test_a_split_under_a_public_seed_is_that_of_earlier_releases() -> None:
    """Published tables of FedCor hold out by these bytes."""
    x, y = records(50)
    salt = public_seed(7, HOLDOUT).to_bytes(8, "little")
    words = [
        int.from_bytes(hashlib.sha256(salt + row.tobytes() + label.tobytes()).digest()[:8], "little")
        for row, label in zip(x, y, strict=True)
    ]
    assert held(x, y).tolist() == [word / 2.0**64 < 0.3 for word in words]


@every(
    "form",
    [
        lambda x, y: (np.asfortranarray(x), y),
        lambda x, y: (x.astype(">f4"), y.astype(">i8")),
        lambda x, y: (np.repeat(x, 2, axis=0)[::2], y),
        lambda x, y: (x.astype(np.float64), y.astype(np.int32)),
        lambda x, y: (np.where(x == 0, -0.0, x).astype(np.float32), y),
    ],
)
def test_equal_values_are_on_one_side(form: Any) -> None:
    x, y = records(300)
    x[::3, 1] = 0.0
    assert np.array_equal(held(*form(x, y)), held(x, y))


def test_every_nan_is_one() -> None:
    x, y = records(300)
    other = x.copy()
    x[:, 1] = np.nan
    other[:, 1] = np.frombuffer(np.uint32(0xFFC00123).tobytes(), np.float32)[0]
    assert x.tobytes() != other.tobytes()
    assert np.array_equal(held(x, y), held(other, y))
    targets = np.where(y[:, None] > 1, 0.0, -0.0).astype(np.float32)
    assert np.array_equal(held(x, targets), held(x, np.abs(targets)))


def test_copies_are_numbered_by_client() -> None:
    """The attack: 4,000 records, 48 of them distinct, had 49 % in a test part of 30 %."""
    x, y = records(48)
    owners = np.repeat(np.arange(4), 1000)
    drawn = np.random.default_rng(3).integers(0, 48, 4000)
    test = Sides(7).apart(x[drawn], y[drawn], 0.3, TEST, owners)
    for client in range(4):
        alone = held(x[drawn][owners == client], y[drawn][owners == client], purpose=TEST)
        assert np.array_equal(test[owners == client], alone)
        # Binomial(1000, 0.3): six standard deviations are 87; false alarm once in 10^8 seeds.
        assert abs(alone.sum() - 300) < 87
    first = np.unique(drawn, return_index=True)[1]
    assert np.array_equal(held(x[drawn], y[drawn])[first], held(x, y)), "number 0 hashes the content alone"


def test_copies_that_differ_in_the_sign_of_a_zero_are_not_exchanged() -> None:
    """Without one, the other would stand in its place: two changes for one record."""
    x, y = np.zeros((60, 3), np.float32), np.arange(60)
    other = np.concatenate([x, -x]), np.concatenate([y, y])
    assert np.array_equal(held(*other), np.tile(held(x, y), 2))


def test_a_data_set_is_parted_by_its_records() -> None:
    x, y = records(400)
    whole = Dataset(name="mine", x=x, y=y, classes=4)
    split = parted(whole, 0.3, Sides(7))
    assert len(split.train) + len(split.test) == 400
    assert np.array_equal(split.test.x, x[held(x, y, purpose=TEST)])


NEEDS = pytest.mark.skipif(
    not os.environ.get("SECUREFL_DATA"), reason="set SECUREFL_DATA to a folder that holds the real files"
)


@pytest.mark.parametrize("name", ["digits", pytest.param("gas_turbine", marks=NEEDS)])
def test_a_packaged_split_by_content_moves_one_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the loader makes it for a study with noise."""
    whole = load(name, sides=Sides(7))
    again = load(name, sides=Sides(7), seed=5)
    assert np.array_equal(whole.test.x, again.test.x)
    n = len(whole.train) + len(whole.test)
    # six standard deviations of the binomial: once in 10^8 seeds by chance
    assert abs(len(whole.test) - 0.3 * n) < 6 * (n * 0.21) ** 0.5


def test_a_world_parts_every_client() -> None:
    whole, parted = world(study(LOSSES)), world(holding(0.2))
    assert whole.held is None
    assert parted.held is not None
    for (x, _), (kept, _), (held, _) in zip(whole.records, parted.records, parted.held, strict=True):
        assert len(kept) + len(held) == len(x)
        assert {row.tobytes() for row in kept} | {row.tobytes() for row in held} == {
            row.tobytes() for row in x
        }


def test_a_client_tells_all_its_records_and_trains_on_some(tmp_path: Path) -> None:
    of = holding(0.5, rounds=1)
    here = world(of)
    assert here.held is not None
    spy, _ = spied(of, tmp_path, here)
    sizes = spy.asks[0][1].per_client["size"]
    assert sizes == {
        k: len(x) + len(held)
        for k, ((x, _), (held, _)) in enumerate(zip(here.records, here.held, strict=True))
    }
    model = here.problem.initial
    losses = next(answers.per_client["loss"] for _, answers in spy.asks if "loss" in answers.per_client)
    for client, (x, y) in enumerate(here.held):
        assert losses[client] == pytest.approx(mean_loss(here.problem.module(model), x, y))


def test_a_client_without_held_out_records_tells_the_loss_of_its_training(tmp_path: Path) -> None:
    """Where loss and update are asked for together, it would else lose both."""
    of = holding(0.2, rounds=2)
    here = world(of)
    assert here.held is not None
    held = [(x[: 0 if k == 3 else None], y[: 0 if k == 3 else None]) for k, (x, y) in enumerate(here.held)]
    spy, finished = spied(of, tmp_path, replace(here, held=held))
    told = [answers.per_client["loss"] for _, answers in spy.asks if "loss" in answers.per_client]
    assert [sorted(own) for own in told] == [list(range(6))] * 2
    of_training = mean_loss(here.problem.module(here.problem.initial), *here.records[3])
    assert told[0][3] == pytest.approx(of_training)
    assert not finished.records[0]["abstained"]
    assert 3 in finished.records[0]["answered"]


def test_a_client_without_any_record_abstains_from_the_loss(tmp_path: Path) -> None:
    """It says so; the others go on without it."""
    of = holding(0.2, rounds=1)
    here = world(of)
    assert here.held is not None
    none = [
        [(x[: 0 if k == 3 else None], y[: 0 if k == 3 else None]) for k, (x, y) in enumerate(records)]
        for records in (here.held, here.records)
    ]
    spy, finished = spied(of, tmp_path, replace(here, held=none[0], records=none[1]))
    told = [answers.per_client["loss"] for _, answers in spy.asks if "loss" in answers.per_client]
    assert [sorted(own) for own in told] == [[0, 1, 2, 4, 5]]
    assert "at least one record" in finished.records[0]["abstained"]["client-0003"]


def test_noised_losses_do_not_tell_who_holds_none_out(tmp_path: Path) -> None:
    of = holding(0.2, LOSSES + "loss_bound = 3.0\n", rounds=1, non_private='["update"]')
    noised = parse(of.text.replace('noise = "none"', 'noise = "local"\nepsilon = 2.0'))
    here = world(noised)
    assert here.held is not None
    held = [(x[:0], y[:0]) for x, y in here.held]
    spy, finished = spied(noised, tmp_path, replace(here, held=held))
    told = [answers.per_client["loss"] for _, answers in spy.asks if "loss" in answers.per_client]
    assert [len(own) for own in told] == [6]
    assert not finished.records[0]["abstained"]


@every("share", ["1.0", "-0.1", "nan"])
def test_a_share_that_leaves_nothing_is_refused(share: str) -> None:
    with pytest.raises(ConfigError, match="holdout"):
        holding(share)  # type: ignore[arg-type]  # as it stands in the TOML


def test_hidden_sums_see_changed_held_out_records(tmp_path: Path) -> None:
    """A run under hidden sums hashes both parts of a client's records, and goes on as in the clear."""
    hidden = {"sum": '"masked"', "dropout": "0.3", "corrupt": "0.15", "min_cohort_size": "3"}
    of = holding(0.2, rounds=1)
    clear = run(of, tmp_path / "clear")
    masked = run(parse(with_privacy(of.text, hidden)), tmp_path / "masked")
    assert clear.records[-1]["accuracy"] == masked.records[-1]["accuracy"]
