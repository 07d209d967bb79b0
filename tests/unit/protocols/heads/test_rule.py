"""Which head the rule names: more noise, a simpler head; and nothing that it reads is private."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_heads import problem, study, world

from securefl.core.errors import ConfigError
from securefl.protocols.heads import Heads
from securefl.protocols.heads.blocks import Blocks, grid_of
from securefl.protocols.heads.options import MOST_VALUES, ClosedForm, choose, widest
from securefl.study.composition import composition
from securefl.study.world import build


def chosen(records: float, deviation: float, **changed: Any) -> Any:
    return choose(
        **{
            "records": records,
            "deviation": deviation,
            "classes": 10,
            "features": 999,
            "ordered": True,
            **changed,
        }
    )


def test_second_moments_are_taken_where_records_outweigh_the_noise() -> None:
    at = {noise: chosen(10_000, noise) for noise in (60.0, 15.0, 4.0, 1.0, 0.0)}
    assert [choice.head for choice in at.values()] == ["prototypes"] * 2 + ["lda"] * 3
    assert [choice.width for choice in at.values()][2:] == [312, 999, 999]
    assert at[60.0].width < at[15.0].width
    assert chosen(10_000, 4.0, ordered=False).width == 999
    assert chosen(10_000, 10.0, features=20).head == "lda", "few features have few moments to put noise on"


def test_second_moments_of_few_records_are_left_out_however_few_the_features() -> None:
    """As breast_cancer at epsilon 1: 30 features: 0.67 by LDA, 0.85 by prototypes (mean of 10)."""
    assert chosen(398, 3.73, classes=2, features=30).head == "prototypes"


def test_covariances_of_a_handful_of_records_are_left_out_without_noise_too() -> None:
    """Two digits of each class, without noise: 0.58 by LDA, 0.66 by prototypes (mean of 24)."""
    assert chosen(20, 0.0, features=64).head == "prototypes"
    assert chosen(100, 0.0, features=64).head == "lda"


def test_a_statistic_is_never_too_large() -> None:
    for classes in (2, 10, 1000):
        wide = widest(classes)
        grid = grid_of(1000, 2)
        sizes = [
            Blocks(classes=classes, width=width, grid=grid, counts=1.0, moments=1.0).size
            for width in (wide, wide + 1)
        ]
        assert sizes[0] <= MOST_VALUES < sizes[1]
    assert chosen(1e9, 1.0, features=5000, ordered=False).width == widest(10)


def algorithm(of: Any) -> ClosedForm:
    made, _ = composition(of, of.arms[0], build(of, 1))
    assert isinstance(made, ClosedForm)
    return made


def test_the_rule_reads_the_plan() -> None:
    """Local noise of 20 clients is sqrt 20 times that of the server, at the same epsilon."""
    assert algorithm(study("none")).head == "lda"
    assert algorithm(study("central", 8.0)).head == "lda"
    assert algorithm(study("central", 0.25)).head == "prototypes"
    assert algorithm(study("local", 1.0)).head == "prototypes"


def test_the_rule_reads_no_record() -> None:
    """Other records of the same number: the same head, width and sensitivity."""
    of = study("central", 2.0, 'projection = "leading"')
    here = world()
    one = of.arms[0].options.build(here.problem)
    for x in (np.zeros_like(here.problem.server_x), 7 * here.problem.server_x):
        from dataclasses import replace

        other = of.arms[0].options.build(replace(here.problem, server_x=x))
        assert other.statistic.spec == one.statistic.spec
        assert (other.head, other.statistic.blocks) == (one.head, one.statistic.blocks)


def test_the_card_names_the_head_and_its_width() -> None:
    (sent,) = algorithm(study("central", 0.25, 'projection = "leading"\nwidth = 20')).contributions
    assert "head: prototypes on 20 of 64 features" in sent.spec.reveals
    (sent,) = algorithm(study("none")).contributions
    assert "head: lda on all 64 features" in sent.spec.reveals
    assert "of a class that it alone holds, its own sums; and which classes nobody holds" in sent.spec.reveals


@every(
    ("options", "said"),
    [
        ({"width": 3}, "projection"),
        ({"projection": "random"}, "Expected width"),
    ],
)
def test_options_that_fit_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Heads(**options)


def test_a_width_beyond_the_features_is_refused() -> None:
    with pytest.raises(ConfigError, match="from 1 to 5"):
        Heads(head="ridge", projection="leading", width=6).build(problem())


def test_a_ridge_that_is_too_wide_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 1,048,576 values"):
        Heads(head="ridge").build(problem(width=1500))
    assert Heads(head="prototypes").build(problem(width=1500))
    (sent,) = Heads().build(problem(width=1500)).contributions
    assert sent.projection.kind == "random"  # type: ignore[attr-defined]


def test_a_bound_on_clients_that_the_grid_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 4096"):
        Heads(client_bound=5000.0).build(problem())


def test_targets_that_are_no_classes_are_refused() -> None:
    from dataclasses import replace

    with pytest.raises(ConfigError, match="classes"):
        Heads().build(replace(problem(), kind="regression"))
