"""Every protocol gives the same models however its sums are summed, whether clients drop out or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arms import ARMS, STATISTICS, hiding
from support.every import every
from support.tiny_study import composed, run, spied, text, with_privacy, world
from support.watched_sums import Watched

from securefl.accounting.ledger import Ledger, Terms
from securefl.algorithm.queries import ByDraws
from securefl.core.errors import ConfigError
from securefl.core.keys import Share
from securefl.he.keys import KeyPair
from securefl.protocols import averaging
from securefl.secagg.packing import Masker
from securefl.study.arm import arm_folder
from securefl.study.config import Study, parse
from securefl.study.results import collect
from securefl.study.run_report import privacy_card
from securefl.sums.encrypted import keys
from securefl.sums.encrypted.parts import SumEncryptor
from securefl.sums.two_server import scheme as padder


def one(name: str, options: str, sum_: str, *, extra: str = "", **changes: Any) -> Study:
    arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n{options}\n'
    permitted = '["statistic", "counts"]' if name in STATISTICS else None
    written = text(arm, clients=7, extra=extra, non_private=permitted, **changes)
    hidden = {"sum": f'"{sum_}"', **hiding((name, options))}
    return parse(written if sum_ == "clear" else with_privacy(written, hidden))


HIDDEN = ("masked", "ckks", "two-server")
OF_ALL_WAYS = ("fedavg", "fedlog")
"""A third of the others take turns here. `test_every_sum` opens the sums of them all."""
LOST = ("fedavg", "fedavg_rp", "fedlog", "cs_fl")
"""Weights by records, by draws and none; several sums in a round."""


def grid(chosen: Callable[[int, str, str], bool]) -> pytest.MarkDecorator:
    """All arms by all ways of hiding sums. Those that are not chosen are slow."""
    return pytest.mark.parametrize(
        ("name", "options", "how"),
        [
            pytest.param(*arm, how, marks=[] if chosen(turn, arm[0], how) else pytest.mark.slow)
            for turn, arm in enumerate(ARMS)
            if arm[0] != "adds"  # without noise its maps are in no hidden sum
            for how in HIDDEN
        ],
    )


class TestSums:
    @grid(lambda turn, name, how: name in OF_ALL_WAYS or (turn % 3 == 0 and how == HIDDEN[turn // 3 % 3]))
    def test_hidden_sums_are_the_clear_ones_bit_for_bit(
        self, name: str, options: str, how: str, tmp_path: Path
    ) -> None:
        clear, _ = spied(one(name, options, "clear"), tmp_path / "clear")
        hidden, finished = spied(one(name, options, how), tmp_path / "hidden")
        for a, b in zip(clear.states, hidden.states, strict=True):
            assert np.array_equal(a.broadcast, b.broadcast)
        assert not any(record["rejected_from"] or record["abstained"] for record in finished.records)

    @grid(lambda turn, name, how: name in LOST and (how != "ckks" or name == "fedavg"))
    def test_what_is_opened_is_the_sum_over_the_survivors(
        self, name: str, options: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Over a network that loses messages: the same statistics, of the survivors alone."""
        lost = 0.1 if how != "masked" else 0.05 if name in STATISTICS else 0.03  # by the messages of a round
        lossy = f"[network]\nreorder = true\nduplicate = 0.2\ndropout = {lost}\n"
        watched = Watched(monkeypatch)
        finished = run(one(name, options, how, extra=lossy, rounds=4), tmp_path)
        assert len(finished.records) == 4
        assert all(not record["rejected_from"] for record in finished.records)
        asked = [(header, query, answers) for header, query, answers in watched.asked if query.sums]
        assert any(answers.survivors for _, _, answers in asked)
        assert any(set(query.cohort) - set(answers.survivors) for _, query, answers in asked), (
            "nobody was lost"
        )
        for header, query, answers in asked:
            if not answers.survivors:
                assert not answers.totals
                continue
            assert len(answers.survivors) >= 0.7 * len(query.cohort)
            for question in query.sums:
                total = answers.totals[question.spec.name]
                if isinstance(query.weights, ByDraws):
                    weights = [query.weights.whole_weight((k,), question.spec) for k in answers.survivors]
                    assert total.weight == sum(weights)
                left = np.sum(watched.left(header, question.spec.name, answers), axis=0)
                assert np.array_equal(total.value, left * question.spec.grid.step)


@every("how", HIDDEN)
def test_the_server_learns_totals(how: str, tmp_path: Path) -> None:
    of = one("fedavg", "fraction = 1.0", how, rounds=1)
    collected = collect(of, [run(of, tmp_path)])
    algorithm, plan = composed(of)
    server = privacy_card(collected, {"x": (algorithm, plan)})[0]
    assert "the total over the cohort of" in server.learns


@every("how", HIDDEN)
def test_a_dropped_client_is_not_in_the_sum(how: str, tmp_path: Path) -> None:
    """Client 2 has nothing to say, and says so in zeros: the clear sum without it is the hidden one."""
    of = one("fedavg", "fraction = 1.0", how, rounds=1)
    here = world(of)
    records = list(here.records)
    records[2] = (np.full_like(records[2][0], np.nan), records[2][1])
    spoilt = replace(here, records=records)
    masked, finished = spied(of, tmp_path / "masked", spoilt)
    clear, _ = spied(one("fedavg", "fraction = 1.0", "clear", rounds=1), tmp_path / "clear", spoilt)
    assert 2 in finished.records[0]["answered"]
    assert "client-0002" in finished.records[0]["without_records"]
    assert np.array_equal(masked.states[-1].broadcast, clear.states[-1].broadcast)


@every("how", HIDDEN)
def test_distributed_noise_in_a_hidden_sum_has_the_epsilon_of_the_sum(how: str, tmp_path: Path) -> None:
    privacy = 'adjacency = "add-remove"\nnoise = "distributed"\nepsilon = 2.0\n'
    of = one("fedlog", "", how, rounds=2)
    written = (
        of.text.replace('adjacency = "replace-one"\n', "")
        .replace('noise = "none"\n', privacy)
        .replace('non_private = ["statistic", "counts"]', "non_private = []")
    )
    of = parse(written)
    finished = run(of, tmp_path)
    for party in ("server", "others"):
        assert finished.records[-1]["epsilon"][party] == pytest.approx(2.0, abs=1e-6)
    terms = Terms(
        unit="record", adjacency="add-remove", delta=of.privacy.delta, max_releases={"statistic": 1}
    )
    with Ledger(arm_folder(tmp_path, of.arms[0], 3) / "ledger.sqlite", terms) as ledger:
        assert len(ledger.rows()) == 7
        assert {row[7] for row in ledger.rows()} == {"committed"}


@every("how", ["masked", "two-server"])
def test_the_server_never_sees_a_single_contribution(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the clients' vectors look like on their way: uniform words, not the small integers of a statistic.

    The mean of n uniform 64-bit words is within 6 deviations of the middle: false alarm 1e-8 a client.
    """
    seen: list[np.ndarray[Any, Any]] = []
    original = Masker.__call__

    def watched(self: Any, number: int, integers: Any) -> Any:
        out = original(self, number, integers)
        seen.append(np.asarray(out))
        return out

    monkeypatch.setattr(Masker, "__call__", watched)
    run(one("fedlog", "", how, rounds=1), tmp_path)
    assert len(seen) == 7
    for packed in seen:
        mean = packed.astype(float).mean()
        assert abs(mean - 127.5) < 6 * np.sqrt((256**2 - 1) / 12 / packed.size)


@every(
    ("changed", "said"),
    [
        ({"dropout": "0.9"}, "less than 1 together"),
        ({"dropout": "0.6"}, "0 honest others surely remain"),
        ({"dropout": "0.45", "corrupt": "0.14", "min_cohort_size": "7"}, "at least 5 survivors of 7 clients"),
        ({"dropout": "-0.1"}, "dropout >= 0"),
        ({"dropout": None}, "Expected `dropout`"),
        ({"max_retries": "-1"}, "max_retries in"),
        ({"max_client_weight": "1.0"}, "max_client_weight in"),
        ({"max_client_weight": "0.3"}, r"more than 0\.3 .* got up to 0\.50[0-9] .* counts from 179 to 180"),
        ({"min_num_examples": "90"}, r"more than 0\.51 .* got up to 0\.8 .* counts from 90 to 180"),
        ({"max_num_examples": None}, "Expected `min_num_examples` and `max_num_examples`"),
    ],
)
def test_masked_sums_need_their_numbers(changed: dict[str, str | None], said: str) -> None:
    given = {word: value for word, value in changed.items() if value is not None}
    written = with_privacy(one("fedavg", "fraction = 1.0", "masked").text, given)
    gone = tuple(f"{word} =" for word in changed.keys() - given.keys())
    written = "\n".join(line for line in written.splitlines() if not gone or not line.startswith(gone))

    def prepare() -> None:
        of = parse(written)
        composed(of)

    with pytest.raises(ConfigError, match=said):
        prepare()


@every(
    ("word", "said"),
    [("min_honest", "at least 9 honest"), ("min_cohort_size", "got 7 draws and min_cohort_size = 9")],
)
@every("how", HIDDEN)
def test_a_sum_that_no_cohort_could_open_is_told_beforehand(how: str, word: str, said: str) -> None:
    """Not round after round, in a run that says nothing else."""
    of = parse(with_privacy(one("fedavg", "fraction = 1.0", how).text, {word: "9"}))
    with pytest.raises(ConfigError, match=said):
        composed(of)


@every("how", HIDDEN)
def test_a_cohort_of_one_is_not_asked(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sum would be its own value: told beforehand, and else by the server before anything is charged."""
    certain = one("fedavg", "fraction = 0.1", how)
    with pytest.raises(ConfigError, match="min_cohort_size = 5"):
        composed(certain)
    of = one("fedavg", 'fraction = 1.0\naggregation = "partial"', how)
    choose = averaging.sample_without_replacement
    monkeypatch.setattr(
        averaging, "sample_without_replacement", lambda chances, count, rng: choose(chances, 1, rng)
    )
    finished = run(of, tmp_path)
    assert [len(record["answered"]) for record in finished.records] == [0, 0]
    assert "1 clients are left, a sum needs 5" in finished.records[0]["abstained"]["server"]
    assert [record["bytes_down"] for record in finished.records] == [0, 0]


def test_a_key_whose_openings_are_used_up_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key's openings are enough for two of these sums, of 8,192 integers each; the run has five."""
    monkeypatch.setattr(keys, "MOST_INTEGERS", 2 * 8192)
    made, original = [], KeyPair.generate

    def counted(*args: Any) -> KeyPair:
        made.append(original(*args))
        return made[-1]

    monkeypatch.setattr(KeyPair, "generate", counted)
    finished = run(one("fedavg", "fraction = 1.0", "ckks", rounds=5), tmp_path)
    assert [len(record["answered"]) for record in finished.records] == [7] * 5
    assert not any(record["abstained"] or record["rejected_from"] for record in finished.records)
    assert len(made) == 3


def test_a_spoilt_ciphertext_costs_its_sender_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose contribution is cut, foreign or junk is blamed; the sum is that of the others."""
    original = SumEncryptor.encrypt
    count = iter(range(10**6))

    def spoilt(self: SumEncryptor, integers: Any) -> bytes:
        good = original(self, integers)
        return {1: good[:-1], 3: bytes(len(good))}.get(next(count), good)

    monkeypatch.setattr(SumEncryptor, "encrypt", spoilt)
    of = one("fedavg", 'fraction = 1.0\naggregation = "partial"', "ckks", rounds=1)
    spy, finished = spied(of, tmp_path)
    assert set(finished.records[0]["rejected_from"]) == {"client-0001", "client-0003"}
    assert finished.records[0]["answered"] == [0, 2, 4, 5, 6]
    assert not np.array_equal(spy.states[0].broadcast, spy.states[-1].broadcast)


BAD_NETWORK = "[network]\nreorder = true\nduplicate = 0.5\n"


@every("extra", ["", BAD_NETWORK])
def test_a_box_that_does_not_open_costs_its_client_alone(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key holder names it; the sum of the others is opened, and it is in no later one."""
    original = padder.box

    def spoilt(secret: Any, agreed: Any, member: int, number: int, seed: Any) -> Any:
        good = original(secret, agreed, member, number, seed)
        name = agreed.roster.members[member].name
        return Share(good.raw[:-1] + bytes([good.raw[-1] ^ 1])) if name == "client-0001" else good

    monkeypatch.setattr(padder, "box", spoilt)
    watched = Watched(monkeypatch)
    of = one("fedavg", 'fraction = 1.0\naggregation = "partial"', "two-server", rounds=2, extra=extra)
    finished = run(of, tmp_path)
    assert set(finished.records[0]["rejected_from"]) == {"client-0001"}
    assert "box does not open" in finished.records[0]["rejected_from"]["client-0001"]
    assert [record["answered"] for record in finished.records] == [[0, 2, 3, 4, 5, 6]] * 2
    assert not finished.records[1]["rejected_from"]
    for header, query, answers in watched.asked:
        for question in query.sums:
            left = np.sum(watched.left(header, question.spec.name, answers), axis=0)
            total = answers.totals[question.spec.name].value
            assert np.array_equal(total, left * question.spec.grid.step)


def test_clear_sums_know_no_dropout() -> None:
    written = one("fedavg", "fraction = 1.0", "clear").text
    with pytest.raises(ConfigError, match="dropout"):
        parse(written.replace('sum = "clear"', 'sum = "clear"\ndropout = 0.3'))
