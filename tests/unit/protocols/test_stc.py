"""STC: the ternary mean by hand, and the bytes of positions in the clear and in hidden sums."""

from __future__ import annotations

from math import log, log2, sqrt
from pathlib import Path

import numpy as np
import pytest
from support.cheap_runs import undrawn
from support.hidden_studies import counts
from support.tiny_study import composed, run, spied, study, text, with_privacy, world

from securefl.core.release import SERVER
from securefl.engine import privacy_card
from securefl.study.config import Study, parse
from securefl.study.session import run_study

ARM = '[[arm]]\nname = "STC"\nprotocol = "stc"\nfraction = 1.0\np = {p}\n'


def by_hand(values: list[float], p: float) -> list[float]:
    """Algorithm 1 of the paper, without arrays."""
    k = max(int(p * len(values)), 1)
    kept = sorted(range(len(values)), key=lambda i: -abs(values[i]))[:k]
    mu = sum(abs(values[i]) for i in kept) / k
    return [(mu if v > 0 else -mu if v < 0 else 0.0) if i in kept else 0.0 for i, v in enumerate(values)]


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """The clients' values of round 1 and 2, their mean, and the server's change, computed here from fits."""
    of = study(ARM.format(p=0.1), rounds=2, clients=4)
    spy, _ = spied(of, tmp_path)
    for number, (before, after) in enumerate(zip(spy.states, spy.states[1:], strict=False)):
        _, answers = spy.asks[number]
        mean = answers.totals["update"].value
        whole = before.memory["residual"] + mean
        sent = np.array(by_hand(whole.tolist(), 0.1))
        np.testing.assert_allclose(after.broadcast, before.broadcast.astype(np.float64) + sent, atol=1e-6)
        np.testing.assert_allclose(after.memory["residual"], whole - sent, atol=1e-6)
        assert np.count_nonzero(after.broadcast != before.broadcast) == 61
    # of four ternary values of a size each, the mean has at most 4 * 61 entries, and never fewer than 61
    assert 61 <= np.count_nonzero(spy.asks[0][1].totals["update"].value) <= 244


def summed(hidden: str, p: float) -> Study:
    of = text(ARM.format(p=p), clients=7, rounds=2).replace("hidden = [8]", "hidden = [64]")
    words = {"sum": f'"{hidden}"'}
    if hidden != "clear":
        words |= {
            "dropout": "0.3",
            "corrupt": "0.15",
            "min_cohort_size": "5",
            "max_client_weight": "0.51",
            "secagg": '"semi-honest"',
            **counts(7),
        }
    return parse(with_privacy(of, words))


def sizes(hidden: str, p: float, folder: Path) -> list[tuple[int, int]]:
    return [(r["bytes_up"], r["bytes_down"]) for r in run(summed(hidden, p), folder).records]


def test_positions_are_golomb_coded_in_the_clear_and_not_in_hidden_sums(tmp_path: Path) -> None:
    """The paper's bits for each position, a sign, and what a message has around them."""
    d, p = 65 * 64 + 65 * 10, 0.01
    b = 1 + int(log2(log((sqrt(5) - 1) / 2) / log(1 - p)))
    bits = b + 1 / (1 - (1 - p) ** 2**b)  # Sattler et al., Eq. 16
    clear, masked = (sizes(way, p, tmp_path / way) for way in ("clear", "masked"))
    coded = 7 * int(p * d) * (bits + 1) / 8
    assert coded < clear[0][0] < coded + 7 * 250
    assert masked[0][0] > 7 * 2 * d
    # in round 2 the server's change is as short, 24 of 32 bits of each number being used
    assert 0 < clear[1][1] - clear[0][1] < 7 * int(p * d) * (bits + 1) / 8 * 4 / 3 * 1.3 + 7 * 40
    assert clear[1][1] < 7 * 4 * d / 10


@pytest.mark.parametrize(("way", "said"), [("clear", "sparse"), ("two-server", "with zeros")])
def test_the_report_says_whether_zeros_travelled(way: str, said: str, tmp_path: Path) -> None:
    with undrawn():
        run_study(summed(way, 0.1), tmp_path / "run", lambda arm, seed, record: None)
    page = (tmp_path / "run" / "report.html").read_text()
    words = [word for word in ("sparse", "with zeros") if f'<span class="unit">{word}</span>' in page]
    assert words == [said]


def learns(of: Study) -> str:
    _, plan = composed(of)
    specs = [own.spec for own in of.arms[0].options.build(world(of).problem).contributions]
    return privacy_card.learns(plan, specs, SERVER)
