"""Texts that digests, keys and files are made of: a change of one of them is a new version of its format.

`python tests/vectors/test_text_vectors.py` writes texts/vectors.json anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from support.every import every

from securefl.accounting.store import Terms
from securefl.accounting.store import written as ledger_words
from securefl.algorithm.plan import Plan
from securefl.deployment import plan_file
from securefl.deployment.plan_file import HolderTerms, PlanFile
from securefl.deployment.updates import Updates
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED
from securefl.linear.pad_terms import PadTerms
from securefl.linear.terms import LinearTerms
from securefl.matching.options import Options
from securefl.matching.profiles import Anchor, Bounds, Variant
from securefl.storage.folder_lock import Holder
from securefl.sums.encrypted.terms import Place, SumTerms
from securefl.training.heads import Bounded, Projection

FILE = Path(__file__).parent / "texts" / "vectors.json"
SMALL = Plan(delta=1e-5, max_rounds=3)
LARGE = Plan(
    sum="masked",
    scores="pads",
    noise="distributed",
    noise_multiplier=0.7,
    separation=3,
    dropout=0.25,
    corrupt=0.1,
    min_cohort_size=9,
    max_cohort_size=12,
    min_honest=6,
    max_client_weight=0.5,
    weights={"model": "draws", "count": "counts"},
    draws=10,
    min_num_examples=2,
    max_num_examples=3,
    min_records=20,
    max_records=999,
    secagg="semi-honest",
    max_retries=2,
    unit="client",
    adjacency="zero-out",
    delta=1e-6,
    non_private=("loss",),
    adversaries=("server",),
    budget=2.5,
    max_rounds=40,
    max_releases={"model": 40, "loss": 1},
)
BOUNDS = Bounds(mean=16, variance_high=64, weight=2.5)
PLACE = Place(session=bytes(range(32)), round=3, attempt=1, stage='it\'s "one"', name="model")


def terms_of(plan: Plan) -> HolderTerms:
    return HolderTerms.of(plan)


def _file(tmp_path: Path, plan: Plan, name: str) -> bytes:
    content = PlanFile(
        name=name, arm="a", seed=7, counter="/c", terms=terms_of(plan), plan=plan, clients=4, records="r.csv"
    )
    plan_file.write(tmp_path, content)
    return (tmp_path / plan_file.NAME).read_bytes()


def _header(variant: Variant, anchor: Anchor | None) -> bytes:
    header = Options(variant, "compact", BOUNDS, anchor).to_header(2)
    return json.dumps({**header, "parameters": str(header["parameters"])}).encode()


CASES: dict[str, Callable[[Path], bytes]] = {
    "plan, defaults": lambda _: SMALL.digest(),
    "plan, every word": lambda _: LARGE.digest(),
    "session": lambda _: LARGE.session(["client-0000", "client-0001"], bytes(32)),
    "plan file": lambda folder: _file(folder, LARGE, "client-0003"),
    "plan file, no budget": lambda folder: _file(folder, SMALL, "server"),
    "updates, defaults": lambda _: Updates().digest,
    "updates": lambda _: (
        Updates(evaluation=("accuracy",), update_bound=1.5, evaluation_bound=2, cohort=3).digest
    ),
    "scores, strong": lambda _: LinearTerms(
        parameters=STRONG, bounds=BOUNDS.linear(5, Variant.FULL), scores=9
    ).digest(),
    "scores, compact": lambda _: LinearTerms(
        parameters=COMPACT, bounds=Bounds().linear(5, Variant.MEAN_ONLY), scores=9
    ).digest(),
    "scores, encrypted baseline": lambda _: LinearTerms(
        parameters=STRONG_ENCRYPTED, bounds=BOUNDS.linear(5, Variant.MEAN_ONLY), scores=9
    ).digest(),
    "pads": lambda _: PadTerms(bounds=BOUNDS.linear(5, Variant.FULL), context=b"\x00'\"").digest,
    "place": lambda _: PLACE.text().encode(),
    "sum": lambda _: (
        SumTerms(length=5, bound=99, clients=3, parameters=STRONG, openings=99_999, place=PLACE).digest
    ),
    "ledger": lambda _: json.dumps(
        ledger_words(
            Terms(
                unit="record",
                adjacency="add-remove",
                delta=1e-5,
                budget=2.0,
                adversaries=("server",),
                max_releases={"model": 3},
            )
        )
    ).encode(),
    "ledger, defaults": lambda _: json.dumps(
        ledger_words(Terms(unit="client", adjacency="zero-out", delta=1e-6))
    ).encode(),
    "header of a file": lambda _: _header(Variant.FULL, None),
    "header of a file, anchored": lambda _: _header(
        Variant.MEAN_ONLY, Anchor(np.array([0.0, 0.5]), np.array([1.0, 2.0]))
    ),
    "lock": lambda _: json.dumps(
        vars(Holder(pid=7, host="host", command="securefl run", since="2026-01-01"))
    ).encode(),
}


def text(name: str, folder: Path) -> str:
    made = CASES[name](folder)
    return made.hex() if len(made) <= 32 else made.decode()


@every("name", CASES)
def test_a_text_has_the_bytes_of_its_version(name: str, tmp_path: Path) -> None:
    assert text(name, tmp_path) == json.loads(FILE.read_text(encoding="utf-8"))[name]


def test_every_vector_is_of_a_text() -> None:
    assert set(json.loads(FILE.read_text(encoding="utf-8"))) == set(CASES)


LINEAR = BOUNDS.linear(5, Variant.FULL)
SUM = SumTerms(length=5, bound=99, clients=3, parameters=STRONG, openings=99_999, place=PLACE)
SCORES = LinearTerms(parameters=STRONG, bounds=BOUNDS.linear(5, Variant.FULL), scores=9)
PADS = PadTerms(bounds=BOUNDS.linear(5, Variant.FULL), context=b"")
LEDGER = Terms(unit="record", adjacency="add-remove", delta=1e-5)
HOLDER = Holder(pid=7, host="host", command="securefl run", since="2026-01-01")
NAMED: list[tuple[Any, int]] = [
    (LARGE, len(LARGE.words())),
    (HolderTerms.of(LARGE), len(HolderTerms.of(LARGE).words())),
    (Updates(), len(json.loads(Updates().text()))),
    (LEDGER, len(ledger_words(LEDGER))),
    (HOLDER, len(vars(HOLDER))),
    (Bounded(kind="clip-l2"), len(Bounded(kind="clip-l2").words())),
    (Projection(kind="none", features=3, width=3), len(Projection(kind="none", features=3, width=3).words())),
    (LINEAR, LINEAR.text().count("=")),
    (STRONG, STRONG.text().count("=")),
    (PLACE, PLACE.text().count("=")),
    (SUM, SUM.text().count("=") - STRONG.text().count("=") - PLACE.text().count("=")),
    (SCORES, SCORES.text().count("=") - STRONG.text().count("=") - LINEAR.text().count("=")),
    (PADS, PADS.digest.decode().count("=") - LINEAR.text().count("=")),
]


@every(("one", "words"), NAMED)
def test_a_text_holds_every_field(one: Any, words: int) -> None:
    """A field without a word would let two parties differ in it under one digest."""
    assert words == len(fields(one))


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        made = {name: text(name, Path(folder)) for name in CASES}
    FILE.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
