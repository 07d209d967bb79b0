"""Which records a client tests on: by their own content, so that no record moves another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_study import run, spied, study, with_privacy, world

from securefl.core.errors import ConfigError
from securefl.data.holdout import held_out
from securefl.study.config import Study, parse
from securefl.training import mean_loss

LOSSES = '[[arm]]\nname = "x"\nprotocol = "pow_d"\nfraction = 1.0\n'


def records(n: int = 2000, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 3)).astype(np.float32), rng.integers(0, 4, n)


def holding(share: float, arm: str = LOSSES, **changes: Any) -> Study:
    return parse(study(arm, **changes).text.replace('"digits"', f'"digits"\nholdout = {share}'))


def test_as_many_as_the_share_says() -> None:
    x, y = records()
    # Binomial(2000, 0.2): six standard deviations are 107, so this fails by chance once in 10^8 seeds.
    assert abs(held_out(x, y, 0.2, 7).sum() - 400) < 107
    assert not held_out(x, y, 0.0, 7).any()


def test_one_record_more_or_less_moves_no_other() -> None:
    x, y = records(200)
    whole = held_out(x, y, 0.3, 7)
    for gone in (0, 57, 199):
        assert np.array_equal(
            held_out(np.delete(x, gone, 0), np.delete(y, gone), 0.3, 7), np.delete(whole, gone)
        )
    order = np.random.default_rng(1).permutation(200)
    assert np.array_equal(held_out(x[order], y[order], 0.3, 7), whole[order])


def test_another_seed_or_label_parts_them_otherwise() -> None:
    x, y = records(200)
    whole = held_out(x, y, 0.3, 7)
    assert not np.array_equal(whole, held_out(x, y, 0.3, 8))
    assert not np.array_equal(whole, held_out(x, y + 1, 0.3, 7))
    assert np.array_equal(whole, held_out(np.asfortranarray(x), y, 0.3, 7))
    assert held_out(x[:0], y[:0], 0.3, 7).shape == (0,)


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
    sizes = spy.asks[0][1].each["size"]
    assert sizes == {
        k: len(x) + len(held)
        for k, ((x, _), (held, _)) in enumerate(zip(here.records, here.held, strict=True))
    }
    model = here.problem.initial
    losses = next(answers.each["loss"] for _, answers in spy.asks if "loss" in answers.each)
    for client, (x, y) in enumerate(here.held):
        assert losses[client] == pytest.approx(mean_loss(here.problem.module(model), x, y))


def test_a_client_without_held_out_records_tells_the_loss_of_its_training(tmp_path: Path) -> None:
    """Where loss and update are asked for together, it would else lose both."""
    of = holding(0.2, rounds=2)
    here = world(of)
    assert here.held is not None
    held = [(x[: 0 if k == 3 else None], y[: 0 if k == 3 else None]) for k, (x, y) in enumerate(here.held)]
    spy, finished = spied(of, tmp_path, replace(here, held=held))
    told = [answers.each["loss"] for _, answers in spy.asks if "loss" in answers.each]
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
    told = [answers.each["loss"] for _, answers in spy.asks if "loss" in answers.each]
    assert [sorted(own) for own in told] == [[0, 1, 2, 4, 5]]
    assert "at least one record" in finished.records[0]["abstained"]["client-0003"]


def test_noised_losses_do_not_tell_who_holds_none_out(tmp_path: Path) -> None:
    of = holding(0.2, LOSSES + "loss_bound = 3.0\n", rounds=1, unprotected='["update"]')
    noised = parse(of.text.replace('noise = "none"', 'noise = "local"\nepsilon = 2.0'))
    here = world(noised)
    assert here.held is not None
    held = [(x[:0], y[:0]) for x, y in here.held]
    spy, finished = spied(noised, tmp_path, replace(here, held=held))
    told = [answers.each["loss"] for _, answers in spy.asks if "loss" in answers.each]
    assert [len(own) for own in told] == [6]
    assert not finished.records[0]["abstained"]


@pytest.mark.parametrize("share", ["1.0", "-0.1", "nan"])
def test_a_share_that_leaves_nothing_is_refused(share: str) -> None:
    with pytest.raises(ConfigError, match="0 <= holdout < 1"):
        holding(share)  # type: ignore[arg-type]  # as it stands in the TOML


def test_hidden_sums_see_changed_held_out_records(tmp_path: Path) -> None:
    """A run under hidden sums hashes both parts of a client's records, and goes on as in the clear."""
    hidden = {"sum": '"masked"', "dropout": "0.3", "corrupt": "0.15", "least_cohort": "3"}
    of = holding(0.2, rounds=1)
    clear = run(of, tmp_path / "clear")
    masked = run(parse(with_privacy(of.text, hidden)), tmp_path / "masked")
    assert clear.records[-1]["accuracy"] == masked.records[-1]["accuracy"]
