"""What every registered averaging protocol does, whoever wrote it: those with a `fraction` of the clients.

An entry point more is a protocol more here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.every import every
from support.tiny_he import SURELY
from support.tiny_study import newest, plain, run, same_state, spied, study, world

from securefl.accounting.ledger import Ledger, Terms
from securefl.algorithm.queries import ByCount, ByDraws
from securefl.core.errors import ConfigError
from securefl.core.installed import entry_points
from securefl.mechanisms.charges import Protection
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Study

NAMES = sorted(
    point.name
    for point in entry_points(group="securefl.protocols")
    if "fraction" in point.load().__dataclass_fields__
)
MORE = {"pfedme": "lamda = 2.0\neta = 0.5\n"}
"""Options that the tiny study's learning rate needs."""
FAULTS = "[network]\nreorder = true\ndelay = 0.2\nduplicate = 0.3\ndropout = 0.2\n"


def one(name: str, **changes: object) -> Study:
    arm = f'[[arm]]\nname = "{name}"\nprotocol = "{name}"\nfraction = 0.5\n{MORE.get(name, "")}'
    return study(arm, **{"clients": 5, **changes})  # type: ignore[arg-type]


def rows(of: Study, folder: Path) -> list[tuple[object, ...]]:
    privacy = of.privacy
    terms = Terms(
        unit=privacy.unit, adjacency=privacy.adjacency, delta=privacy.delta, adversaries=privacy.adversaries
    )
    with Ledger(arm_folder(folder, of.arms[0], 3) / "ledger.sqlite", terms) as ledger:
        return ledger.rows()


def test_the_published_protocols_are_registered() -> None:
    """The tests below would pass for an empty group."""
    assert {"fedavg", "fedprof", "fedprox", "fedadam", "fedavg_rp", "cfcfm", "active_fl"} <= set(NAMES)


FEW = ("active_fl", "fedavg", "fedprof")
"""Of them `make test` tries encrypted scores too: one sends losses, one no number, one profiles."""
MOST = [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in NAMES]


class TestProtocol:
    @every("name", NAMES)
    def test_two_rounds_in_the_clear(self, name: str, tmp_path: Path) -> None:
        """What it learns, what it asks for, what that is charged, what is stored; and the same run again."""
        of = one(name)
        spy, finished = spied(of, tmp_path / "run")
        assert [record["round"] for record in finished.records] == [1, 2]
        for before, after in zip(spy.states, spy.states[1:], strict=False):
            assert not np.array_equal(before.broadcast, after.broadcast)
            assert np.isfinite(after.broadcast).all()
            assert after.broadcast.dtype == np.float32
        for record in finished.records:
            assert 1 <= len(record["selected"]) <= 3
            assert not record["rejected_from"]
            assert not record["abstained"]

        algorithm = of.arms[0].options.build(world(of).problem)
        names = [statistic.spec.name for statistic in algorithm.contributions]
        assert len(set(names)) == len(names)
        asked = {spec.name for query, _ in spy.asks for spec in query.wants()}
        assert asked == set(names)
        for statistic in algorithm.contributions:
            Protection(of.privacy.plan(2), statistic.spec).charge()
        assert {row[5] for row in rows(of, tmp_path / "run")} == asked

        with Checkpoint(checkpoint_file(arm_folder(tmp_path / "run", of.arms[0], 3))) as checkpoint:
            stored, records = checkpoint.load()
        assert stored is not None
        assert same_state(stored, spy.states[-1])
        assert plain(records) == plain(finished.records)
        assert plain(run(of, tmp_path / "again").records) == plain(finished.records)

    @every("name", NAMES)
    def test_what_is_missing_or_unknown_is_named_before_anything_runs(
        self, name: str, tmp_path: Path
    ) -> None:
        sent = {s.spec.name for s in one(name).arms[0].options.build(world(one(name)).problem).contributions}
        for lacking in sent - {"size", "count", "tuned"}:
            rest = sorted(sent - {lacking})
            of = one(name, non_private=str(rest).replace("'", '"'))
            with pytest.raises(ConfigError, match=f'non_private = ."{lacking}".'):
                spied(of, tmp_path / lacking)
            assert not (tmp_path / lacking).exists()
        with pytest.raises(ConfigError, match="`colour`"):
            study(f'[[arm]]\nname = "x"\nprotocol = "{name}"\nfraction = 0.5\ncolour = 1\n')

    @every("name", NAMES)
    def test_all_clients_and_one_client_and_no_message(self, name: str, tmp_path: Path) -> None:
        for fraction, most in (("1.0", 5), ("0.01", 1)):
            arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\nfraction = {fraction}\n{MORE.get(name, "")}'
            finished = run(study(arm, clients=5, rounds=1), tmp_path / fraction)
            assert 1 <= len(finished.records[0]["selected"]) <= most
        spy, finished = spied(one(name, extra="[network]\ndropout = 1.0\n"), tmp_path / "lost")
        assert len(finished.records) == 2
        assert np.array_equal(spy.states[0].broadcast, spy.states[-1].broadcast)

    @pytest.mark.parametrize("scores", ["clear", pytest.param("ckks", marks=pytest.mark.slow)])
    @pytest.mark.parametrize("name", NAMES)
    def test_it_goes_on_over_a_bad_network(self, name: str, scores: str, tmp_path: Path) -> None:
        """Nobody is blamed for what the network does, and the model still moves."""
        spy, finished = spied(one(name, rounds=4, clients=8, scores=scores, extra=FAULTS), tmp_path)
        assert len(finished.records) == 4
        assert all(not record["rejected_from"] for record in finished.records)
        assert not np.array_equal(spy.states[0].broadcast, spy.states[-1].broadcast)
        assert all(np.isfinite(state.broadcast).all() for state in spy.states)
        silent = [set(query.cohort) - set(answers.survivors) for query, answers in spy.asks]
        assert any(silent), "choose another seed: nobody was lost"
        updates = [query for query, _ in spy.asks if [s.spec.name for s in query.sums] == ["update"]]
        assert all(isinstance(query.weights, ByDraws | ByCount) for query in updates)

    @pytest.mark.parametrize("name", MOST)
    def test_encrypted_scores_select_the_same_clients(self, name: str, tmp_path: Path) -> None:
        """And the same seed gives the same run, over a bad network too."""
        clear = run(one(name, rounds=3), tmp_path / "clear")
        sealed = run(one(name, rounds=3, scores="ckks"), tmp_path / "ckks")
        assert [r["selected"] for r in clear.records] == [r["selected"] for r in sealed.records]
        assert clear.records[-1]["error_bound"] is None
        if name == "fedprof":
            assert sealed.records[-1]["bytes_up"] > 10 * clear.records[-1]["bytes_up"]
            assert sealed.records[-1]["error_bound"] > 0
        lost = [run(one(name, extra=FAULTS), tmp_path / folder) for folder in ("a", "b")]
        assert plain(lost[0].records) == plain(lost[1].records)


@every("variant", ["full", "mean-only"])
@every("scores", ["ckks", "pads"])
def test_each_way_of_scoring_gives_the_divergences_of_the_clear_one(
    scores: str, variant: str, tmp_path: Path
) -> None:
    """Round by round, within the bound that the run states, for as long as the same clients are chosen."""
    arm = f'[[arm]]\nname = "x"\nprotocol = "fedprof"\nfraction = 0.5\nvariant = "{variant}"\n'
    clear = run(study(arm, rounds=3), tmp_path / "clear")
    sealed = run(study(arm, rounds=3, scores=scores), tmp_path / scores)
    compared = 0
    for a, b in zip(clear.records, sealed.records, strict=True):
        assert not b["rejected_from"]
        assert not b["abstained"]
        there = [own.records[: a["round"]] for own in (clear, sealed)]
        pairs = np.array([newest(own, "divergence", 6) for own in there])
        assert np.abs(pairs[0] - pairs[1]).max() <= SURELY * b["error_bound"] < 1e-2
        compared += 1
        if a["selected"] != b["selected"]:  # two clients tied within the bound
            break
    assert compared == 3
    assert (np.array([r["bytes_up"] for r in sealed.records]) > [r["bytes_up"] for r in clear.records]).all()


@every("scores", ["ckks", "pads"])
def test_each_way_of_scoring_goes_on_over_a_bad_network(scores: str, tmp_path: Path) -> None:
    TestProtocol().test_it_goes_on_over_a_bad_network("fedprof", scores, tmp_path)
