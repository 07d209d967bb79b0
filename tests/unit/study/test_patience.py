"""An arm ends when tests on the server's own records get no better, and no client's record decides it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.private_studies import private
from support.tiny_study import FEDAVG, composed, plain, run, study, text, world

from securefl.core.errors import ConfigError
from securefl.study.alarms import once
from securefl.study.config import Brought, Study, parse
from securefl.study.run_report import quiet
from securefl.study.session import run_study


def patient(own: Study, patience: int = 2, **changes: Any) -> Study:
    return replace(own, study=replace(own.study, patience=patience, **changes))


def test_an_arm_ends_after_its_tests_were_no_better_for_so_long(tmp_path: Path) -> None:
    """Nothing moves the model: its first test is its best one."""
    still = study(FEDAVG, rounds=9)
    still = replace(still, local=replace(still.local, learning_rate=1e-12))
    own = patient(still)
    here = world(own)
    records = run(own, tmp_path / "run", here=here).records
    assert [record["ended"] for record in records] == [False, False, True]
    assert plain(run(own, tmp_path / "run", here=here).records) == plain(records)  # it stays ended
    seldom = patient(still, evaluate_every=2)
    assert len(run(seldom, tmp_path / "seldom", here=here).records) == 6  # tests after rounds 2, 4 and 6


def test_a_stop_is_told_in_the_answer_the_report_and_the_summary(tmp_path: Path) -> None:
    still = parse(text(FEDAVG, rounds=9, seeds="[3, 4]").replace("rounds = 9", "rounds = 9\npatience = 2"))
    still = replace(still, local=replace(still.local, learning_rate=1e-12))
    results, page = run_study(still, tmp_path / "run", lambda arm, seed, record: None, baselines=False)
    why = "after round 3 of 9: no better for 2 tests (`patience`)"
    said = f"FedAvg: stopped under seed 3 {why}; stopped under seed 4 {why}."
    assert once(quiet(results)) == [said]
    assert said in page.read_text()
    (arm,) = json.loads((tmp_path / "run" / "summary.json").read_text())["arms"]
    assert (arm["rounds"], f"FedAvg: {arm['stopped']}") == (3, said)


TESTED: list[tuple[list[float], bool]] = [
    ([0.1, 0.1, 0.1], True),
    ([0.1, 0.1], False),
    ([0.1, 0.2, 0.1], False),
    ([0.3, 0.2, 0.3], True),
    ([nan, nan, nan], True),
    ([nan, nan, 0.1], False),
    ([0.1, nan, nan], True),
]


@every(("tested", "level"), TESTED)
def test_a_test_that_diverged_is_no_better_than_any(tested: list[float], level: bool) -> None:
    assert patient(study(FEDAVG)).study.level(tested) is level


def test_a_stop_that_would_tell_of_clients_records_is_refused_and_the_remedies_work(tmp_path: Path) -> None:
    personal = '[[arm]]\nname = "x"\nprotocol = "fedper"\n'
    with pytest.raises(ConfigError, match=r"got records of its clients.*Leave it out"):
        composed(patient(study(personal)))
    composed(study(personal))
    claimed = private("fedavg", 'fraction = 1.0\naggregation = "partial"')
    composed(patient(claimed))  # the packaged test part is public
    rows = ["a,b,label", *(f"0.{at % 10},0.{at % 7},{at % 2}" for at in range(60))]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    (tmp_path / "public.csv").write_text("\n".join(rows[:20]))
    said = {"source": "rows.csv", "target": "label", "test_share": 0.25}
    own = _of_file(claimed, tmp_path, said)
    with pytest.raises(ConfigError, match="name a public file as `test`"):
        composed(own)
    composed(_of_file(claimed, tmp_path, {**said, "test": "public.csv", "test_share": None}))


def test_a_test_part_that_a_function_gives_is_the_servers_own() -> None:
    claimed = private("fedavg", 'fraction = 1.0\naggregation = "partial"')
    text = claimed.text.replace('source = "digits"', "classes = 2\npublic_num_examples = 9")
    rng = np.random.default_rng(0)
    whole = rng.random((60, 3)).astype(np.float32), np.arange(60) % 2
    with pytest.raises(ConfigError, match=r'give \{"train": \.\.\., "test": \.\.\.\} from Python'):
        composed(patient(parse(text, brought=Brought(data=whole))))
    parts = {"train": whole, "test": (whole[0][:20], whole[1][:20])}
    composed(patient(parse(text, brought=Brought(data=parts))))


def _of_file(of: Study, home: Path, said: dict[str, Any]) -> Study:
    lines = "\n".join(
        f"{key} = {value!r}".replace("'", '"') for key, value in said.items() if value is not None
    )
    columns = "columns = { a = { range = [0, 1] }, b = { range = [0, 1] } }"
    lines += "\nclasses = [0, 1]\npublic_num_examples = 9"
    text = of.text.replace('source = "digits"', f"{lines}\n{columns}")
    return patient(parse(text, home=home))
