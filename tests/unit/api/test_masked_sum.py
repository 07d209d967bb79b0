"""One masked sum for somebody else's loop: what callers do wrong, and which client is charged over calls."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from support.every import every

import securefl
from securefl.accounting.ledger import Ledger
from securefl.core.errors import BudgetExceeded, ConfigError, DataError, ProtocolError, SecureFLError

FOUR: dict[str, Any] = {"ann": [1.0, 2.0], "bob": [0.5, 0.0], "eve": [0.25, 1.0], "joe": [9.0, 9.0]}
TRUST: dict[str, Any] = {"corrupt": 0.0, "min_honest": 1, "max_client_weight": 0.5}
NOISED: dict[str, Any] = {**TRUST, "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}


def total(of: Any = FOUR, **options: Any) -> Any:
    return securefl.masked_sum(of, **{"bound": 1000.0, **TRUST, **options})


def test_the_total_is_exact_to_its_error() -> None:
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=(3, 2)) for _ in range(6)]
    found = total(vectors, bound=8)
    assert found.total.shape == (3, 2)
    assert np.abs(found.total - sum(vectors)).max() <= found.error < 1e-7
    assert found.survivors == (0, 1, 2, 3, 4, 5)


def test_without_noise_epsilon_is_infinite_and_says_so() -> None:
    found = total()
    assert found.epsilon == {"server": np.inf, "key-holder": 0.0, "others": np.inf}
    assert found.event == NonPrivateDpEvent()
    assert found.learns["server"].startswith("the total over the cohort of its vector")


def test_whoever_falls_silent_is_not_in_the_total() -> None:
    found = total(corrupt=0.25, dropout=0.25, silent=["joe"])
    assert found.total.tolist() == pytest.approx([1.75, 3.0])
    assert list(found.absent) == ["joe"]
    with pytest.raises(ProtocolError, match="at most 0 of 4"):
        total(silent=["joe"])


def test_noise_is_charged_in_the_ledger(tmp_path: Path) -> None:
    found = securefl.masked_sum(FOUR, **NOISED, ledger=tmp_path / "ledger")
    assert found.event == GaussianDpEvent(1.0)
    terms = securefl.Plan(delta=1e-5, max_rounds=1, unit="client", adjacency="zero-out").terms()
    with Ledger(tmp_path / "ledger", terms) as ledger:
        assert ledger.worst("server") == found.epsilon["server"] == pytest.approx(4.377, abs=1e-3)
        assert len(ledger.rows()) == 4


def test_without_a_ledger_the_event_is_stated_and_this_release_accounted_alone() -> None:
    first, second = (securefl.masked_sum(FOUR, **NOISED) for _ in range(2))
    assert first.epsilon == second.epsilon
    assert not np.array_equal(first.total, second.total)


def test_a_vector_is_clipped_with_noise(tmp_path: Path) -> None:
    """A hundred noised sums of vectors far over the clip: their mean is that of the clipped ones."""
    far = {name: np.full(50, 1e6) for name in "abc"}
    found = securefl.masked_sum(far, **{**NOISED, "noise_multiplier": 0.01})
    assert found.total.mean() == pytest.approx(3 / np.sqrt(50), abs=0.02)


def test_a_budget_holds_over_calls_by_name_and_not_by_place(tmp_path: Path) -> None:
    """The attack: other clients, in another order, in the second call. By place joe would pay for ann."""
    noised = {**NOISED, "budget": 9.0, "ledger": tmp_path / "ledger"}
    spent = [
        securefl.masked_sum({name: FOUR[name] for name in names}, **noised).epsilon["server"]
        for names in (("ann", "bob"), ("joe", "ann"), ("ann", "eve"))
    ]
    assert spent == sorted(spent)
    with pytest.raises(BudgetExceeded, match="client 'ann': "):
        securefl.masked_sum({"ann": [1.0], "eve": [1.0]}, **noised)
    assert securefl.masked_sum({"bob": [1.0], "eve": [1.0]}, **noised).survivors == ("bob", "eve")


@every(
    "damage",
    [
        "UPDATE releases SET holder = 'client ''eve''' WHERE reserved = 1",
        "DELETE FROM releases",
    ],
)
def test_a_client_that_lost_its_charges_is_noticed(damage: str, tmp_path: Path) -> None:
    """Otherwise the next call would give a client's entries to another one, or forget them."""
    two = {"ann": [1.0], "bob": [2.0]}
    total(two, ledger=tmp_path / "ledger", delta=1e-5)
    db = sqlite3.connect(tmp_path / "ledger")
    db.execute(damage)
    db.commit()
    db.close()
    with pytest.raises(DataError, match="damaged"):
        total(two, ledger=tmp_path / "ledger", delta=1e-5)


@every(
    "of",
    [
        {"a": [1], "b": [np.nan]},
        {"a": [1], "b": [np.inf]},
        {"a": [1], "b": [1, 2]},
        {"a": [[1]], "b": [1]},
        {"a": [1]},
        {},
        [[1], ["x"]],
        [[1j], [2]],
        [[], []],
        [None, None],
        "abc",
        np.array(3.0),
        np.ma.masked_equal(np.ones((2, 2)), 1),
        {"a": np.ma.masked_equal([1.0, 2.0], 2), "b": [1.0, 1.0]},
        {1: [1], "1": [2]},
        {(1,): [1], "(1,)": [2]},
        {True: [1], "b": [2]},
        {("a", False): [1], "b": [2]},
        {(): [1], "b": [2]},
        {None: [1], "b": [2]},
        {1.5: [1], "b": [2]},
        {"Server": [1], "b": [2]},
        {"a\n": [1], "b": [1]},
        {"e\u0301": [1], "\u00e9": [1]},
        {"a ": [1], "a": [1]},
        {"": [1], "b": [1]},
        {"a": [1], "b": [2000]},
    ],
)
def test_vectors_that_cannot_be_added_are_refused_before_anything_is_charged(of: Any, tmp_path: Path) -> None:
    with pytest.raises((DataError, ConfigError), match="Expected"):
        total(of, ledger=tmp_path / "ledger", delta=1e-5)
    assert not list(tmp_path.iterdir())


@every(
    "options",
    [
        {"corrupt": 0.9},
        {"corrupt": None},
        {"dropout": 0.9},
        {"clip": 1.0},
        {"bound": None},
        {"bound": -1.0},
        {"bound": np.nan},
        {"noise_multiplier": 1.0, "delta": 1e-5},
        {"bound": None, "clip": 1.0, "noise_multiplier": 1.0},
        {"bound": None, "clip": 1.0, "noise_multiplier": np.nan, "delta": 1e-5},
        {"bound": None, "clip": 1.0, "noise_multiplier": 1e5, "delta": 1e-5},
        {"bound": None, "clip": 1.0, "noise_multiplier": -1.0, "delta": 1e-5},
        {"budget": 1.0},
        {"ledger": "somewhere"},
        {"silent": ["nobody"]},
        {"delta": 2.0},
        {"min_honest": 9},
        {"min_honest": None},
        {"min_honest": "1"},
        {"min_honest": 0},
        {"max_client_weight": 0.2},
        {"max_client_weight": 1.0},
        {"max_client_weight": 0.0},
        {"max_client_weight": np.nan},
        {"max_client_weight": None},
        {"max_client_weight": "0.5"},
        {"corrupt": "0.1"},
        {"dropout": None},
        {"noise_multiplier": None},
        {"bound": "5"},
        {"bound": np.array([5.0, 9.0])},
        {"bound": None, "clip": 1e308},
        {"bound": None, "clip": 1e-320},
        {"delta": "1"},
        {"silent": "joe"},
        {"silent": None},
        {"ledger": 3, "delta": 1e-5},
        {"ledger": "a\0b", "delta": 1e-5},
        {"ledger": "", "delta": 1e-5},
    ],
)
def test_parameters_that_cannot_be_used_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SecureFLError, match="Expected"):
        total(**options)


def test_fewer_clients_than_the_graph_needs_are_refused() -> None:
    with pytest.raises(ConfigError, match="survivors of 5 clients"):
        total({name: [1.0] for name in "abcde"}, corrupt=0.2, dropout=0.4)


def test_a_sum_that_would_tell_one_client_of_the_others_is_refused() -> None:
    """Of 4 clients 3 are enough and 1 may collude: beside a client is one other for sure, half of the sum."""
    trust = {"corrupt": 0.25, "dropout": 0.25}
    assert total(**trust, max_client_weight=0.5).survivors == ("ann", "bob", "eve", "joe")
    with pytest.raises(ConfigError, match=r"more than 0\.49 .*0\.5 .* of 4"):
        total(**trust, max_client_weight=0.49)
    with pytest.raises(ConfigError, match=r"at least 3 .*got 2 .* 4"):
        total(**trust, min_honest=3)


@every("word", TRUST)
def test_whom_to_trust_is_never_assumed(word: str) -> None:
    said = {name: value for name, value in TRUST.items() if name != word}
    with pytest.raises(TypeError, match=word):
        securefl.masked_sum(FOUR, bound=1000.0, **said)


def test_two_names_of_one_person_are_refused_in_one_call_and_over_calls(tmp_path: Path) -> None:
    """The attack: "Ann" in a second call has a budget of her own beside that of "ann"."""
    with pytest.raises(ConfigError, match="got 'ann' and 'Ann'"):
        total({"ann": [1.0], "Ann": [2.0], "bob": [3.0]})
    noised = {**NOISED, "ledger": tmp_path / "ledger"}
    securefl.masked_sum({"ann": [1.0], "bob": [2.0]}, **noised)
    with pytest.raises(ConfigError, match="got 'ann' and 'ANN'"):
        securefl.masked_sum({"ANN": [1.0], "bob": [2.0]}, **noised)
    terms = securefl.Plan(delta=1e-5, max_rounds=1, unit="client", adjacency="zero-out").terms()
    with Ledger(tmp_path / "ledger", terms) as ledger:
        assert len(ledger.rows()) == 2, "nothing was charged by the call that was refused"


def test_tensors_are_taken_with_a_gradient_and_of_less_precision() -> None:
    """A model's parameters as they are: detached, and bfloat16 as float32, which holds each such number."""
    layer = torch.nn.Linear(2, 1, bias=False)
    rows = [layer.weight.detach() * 0 + at for at in (0.5, 1.0, 2.0)]
    given = {"ann": torch.nn.Parameter(rows[0]), "bob": rows[1].to(torch.bfloat16), "eve": rows[2].numpy()}
    trust: dict[str, Any] = {"corrupt": 0.0, "min_honest": 2, "max_client_weight": 0.5}
    assert securefl.masked_sum(given, bound=4.0, **trust).total.round(6).tolist() == [[3.5, 3.5]]
    with pytest.raises(DataError, match="eve"):
        securefl.masked_sum({**given, "eve": [rows[1].to(torch.bfloat16)] * 2}, bound=4.0, **trust)
