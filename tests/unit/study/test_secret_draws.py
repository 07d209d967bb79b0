"""A study whose clients take part by secret draws: what is charged, trained, planned and stated."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import DpEvent, NoOpDpEvent
from support.every import every
from support.private_studies import client_level
from support.tiny_study import FEDAVG, composed, run, text, with_privacy, world

from securefl.accounting.composition import compose, running_epsilon
from securefl.accounting.events import NON_PRIVATE, History, steps_event
from securefl.accounting.statements import releases_of
from securefl.core.errors import ConfigError
from securefl.core.release import OTHERS, SERVER
from securefl.engine.party import contributing
from securefl.mechanisms.charges import Protection, events_of
from securefl.study.arm import made_folder
from securefl.study.config import Study, parse
from securefl.study.forecast import forecast, lines
from securefl.study.privacy_statement import statements
from securefl.study.session import run_study
from securefl.training.local import BOUND

Q = 0.5
NETWORK = "\n[network]\nreorder = true\nduplicate = 0.2\ndropout = 0.1\n"


def study(**privacy: str) -> Study:
    return client_level(**{"sampling_rate": str(Q), "adversaries": '["others"]'} | privacy)


def charged(folder: Path, of: Study) -> Counter[tuple[str, DpEvent]]:
    """The events against others in a run's ledger, by client."""
    home = made_folder(folder, of.arms[0], world(of).seed)
    [file] = list(home.rglob("ledger.sqlite"))
    return Counter(
        {
            (holder, charge.others): count
            for holder, own in releases_of(file).items()
            for (_, charge), count in own.items()
        }
    )


def test_each_query_is_charged_whether_its_client_was_drawn_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network that loses orders and answers, and over a break: no less than what was released."""
    of = parse(study().text + NETWORK)
    here, own, left = world(of), contributing.protect, list[tuple[Any, bool]]()

    def watched(protection: Any, value: Any, **given: Any) -> Any:
        release = own(protection, value, **given)
        left.append((release.key, bool(np.any(release._numbers))))
        return release

    monkeypatch.setattr(contributing, "protect", watched)
    for rounds in (1, of.study.rounds):
        found = run(of, tmp_path, here=here, rounds=rounds)
    plan = composed(of, here)[1]
    event = steps_event(Q, plan.noise_multiplier, 1)
    released, paid = Counter(key.holder for key, _ in left), charged(tmp_path, of)
    assert {drawn for _, drawn in left} == {True, False}
    assert paid == {(holder, event): count for holder, count in released.items()}
    worst = max(released.values())
    expected = running_epsilon(History.of({event: worst}), plan.delta)
    assert found.records[-1]["epsilon"][OTHERS] == pytest.approx(expected, rel=1e-9)
    assert found.records[-1]["epsilon"][SERVER] == np.inf


def test_a_client_that_is_not_drawn_does_not_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it keep a state, or note a value that it did not send."""
    of, trained, drawn = study(), list[int](), list[bool]()
    own, taken = contributing.Computing.train, contributing.takes_part

    def train(self: Any, wave: Any, speaking: Any = ()) -> None:
        trained.extend(task.client for task, _ in wave if task.wants)
        own(self, wave, speaking)

    def takes_part(*given: Any) -> bool:
        drawn.append(taken(*given))
        return drawn[-1]

    monkeypatch.setattr(contributing.Computing, "train", train)
    monkeypatch.setattr(contributing, "takes_part", takes_part)
    run(of, tmp_path)
    assert 0 < len(trained) < len(drawn) / 2
    assert 2 * len(trained) == sum(drawn), "asked before the training, and once more for the release"


@every(
    ("name", "more"),
    [
        ("fedprof", ""),
        ("fedper", ""),
        ("fedbabu", 'fine_tuned = "head"\nfine_tune_epochs = 1'),
    ],
)
def test_scores_and_personal_heads_go_beside_draws(name: str, more: str, tmp_path: Path) -> None:
    """Clients that are not drawn still send their profiles and keep their heads. No client abstains."""
    of = client_level(name, rounds=3, more=more, sampling_rate=str(Q), adversaries='["others"]')
    here = world(of)
    found = run(of, tmp_path, here=here)
    sampled = steps_event(Q, composed(of, here)[1].noise_multiplier, 1)
    paid = charged(tmp_path, of)
    assert sum(count for (_, event), count in paid.items() if event == sampled) == 3 * 6
    others = {event for _, event in paid} - {sampled}
    assert others <= {NON_PRIVATE.others if name == "fedprof" else NoOpDpEvent()}, (
        "a profile has no noise here"
    )
    assert not any(record["abstained"] for record in found.records)


def test_a_bound_that_adapts_follows_the_share_of_those_who_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is not drawn counts neither as clipped nor as within. Here all are within."""
    of = study(epsilon="1000.0", budget="inf")
    of = replace(of, local=replace(of.local, bound_quantile=0.5, learning_rate=1e-9))
    drawn, taken = Counter[int](), contributing.takes_part

    def takes_part(protection: Any, key: Any, secret: Any) -> bool:
        drawn[key.round] += (own := taken(protection, key, secret))
        return own

    monkeypatch.setattr(contributing, "takes_part", takes_part)
    here = world(of)
    (one,), plan = composed(of, here)[0].contributions, composed(of, here)[1]
    noise = Protection(plan, one.spec).mechanism.deviation(6) / 6
    found = run(of, tmp_path, here=here)
    before = of.local.update_bound
    for record in found.records:
        number, within = record["round"], drawn[record["round"]] / 2  # asked twice, as above
        rate = 2 * number**-0.5
        expected = min(1, rate * within / (2 * 6 * Q))
        # Seven deviations of the noise of a share, which is twice that of a mean of bits.
        assert np.log(before / record[BOUND]) == pytest.approx(expected, abs=7 * rate * 2 * noise)
        assert 7 * 2 * noise < 1 / 6, "or it does not tell one client more"
        before = record[BOUND]


def test_noise_is_calibrated_for_the_draws_and_no_smaller() -> None:
    plain, of = (composed(study(**more)) for more in ({"sampling_rate": "1.0"}, {}))
    plan, rounds = of[1], of[1].max_rounds
    [spec] = [one.spec for one in of[0].contributions]
    events = events_of(plan, [spec], OTHERS, rounds)
    assert events == {steps_event(Q, plan.noise_multiplier, 1): rounds}
    assert compose(events, plan.delta) <= 8.0
    less = {steps_event(Q, 0.99 * plan.noise_multiplier, 1): rounds}
    assert compose(less, plan.delta) > 8.0
    assert plan.noise_multiplier < plain[1].noise_multiplier
    without = Protection(plain[1], spec).mechanism.deviation(4)
    assert Protection(plan, spec).mechanism.deviation(4) > without, "fewer train, and that has a price"


@every(
    ("privacy", "said", "remedy"),
    [
        ({"sampling_rate": "0.0"}, r"sampling_rate", {"sampling_rate": "1.0"}),
        ({"sampling_rate": "1e-30"}, r"\[0.001, 1\]", {"sampling_rate": "0.1"}),
        ({"sampling_rate": "0.01"}, "above delta = 0.01", {"delta": "1e-3", "sampling_rate": "0.01"}),
        ({"adversaries": '["key-holder", "others"]'}, r"adversaries = \[\"others\"\]", {}),
        ({"adjacency": '"replace-one"'}, 'adjacency = "zero-out"', {}),
        ({"noise": '"local"'}, 'noise = "central"', {}),
        ({"calibration": '"paper"'}, "counts no draws", {"calibration": '"exact"'}),
        (
            {"sum": '"masked"', "dropout": "0.2", "corrupt": "0.0"},
            'sum = "clear"',
            {},
        ),
    ],
)
def test_a_study_says_why_draws_would_amplify_nothing(
    privacy: dict[str, str], said: str, remedy: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=said):
        composed(study(**privacy))
    composed(study(**remedy))


def test_draws_without_noise_are_refused() -> None:
    """A study of records in the clear, whose section has no epsilon: its draws would be ignored."""
    bare = with_privacy(text(FEDAVG), {"sampling_rate": "0.5"})
    with pytest.raises(ConfigError, match='Expected noise = "central" with a `sampling_rate`'):
        parse(bare)
    parse(bare.replace("sampling_rate = 0.5\n", ""))


def test_without_noise_there_is_nothing_to_amplify() -> None:
    of = study(epsilon="inf", budget="inf")
    plan = composed(of)[1]
    assert (plan.noise, plan.sampling_rate) == ("none", 1.0)
    said = "\n".join(lines(of, [forecast(of, of.arms[0], world(of))]))
    assert "Without noise no client draws: all that are asked train, 2 times as many as with noise." in said


def test_plan_and_statement_say_who_learns_of_draws(tmp_path: Path) -> None:
    of = study()
    own = forecast(of, of.arms[0], world(of))
    assert own.epsilon[SERVER] == np.inf
    assert own.epsilon[OTHERS] == pytest.approx(of.privacy.epsilon, rel=1e-3)
    assert "which clients' own draws let them take part" in "\n".join(lines(of, [own]))
    run_study(of, tmp_path, lambda *_: None, baselines=False)
    [said] = statements(tmp_path).values()
    assert said["Sampling"] == [
        f"Each client takes part in a sum with probability {Q:g}, independently, and ε counts this "
        "amplification.",
        "Clients draw for themselves. The server learns of draws, and no other party, times apart.",
    ]
    assert any("Poisson-sampled Gaussian mechanism, noise multiplier" in one for one in said["Mechanism"])
