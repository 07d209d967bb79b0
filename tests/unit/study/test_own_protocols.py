"""A protocol of a person's own: `module:name` in a study, or from Python, under the rules of code."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_study import FEDAVG, spied, text

import securefl
from securefl.api.studies import study_from
from securefl.core.errors import ConfigError, DataError
from securefl.protocols.averaging import Averaging, Selection
from securefl.study.composition import composition
from securefl.study.config import Study, parse, read
from securefl.study.own_code import require_no_code, told
from securefl.study.session import run_study
from securefl.study.world import build
from securefl.sweep.cells import parse_sweep

MINE = """
import helper
from securefl.protocols.averaging import Averaging, Options, Selection
from pathlib import Path
Path(__file__).with_name("ran").touch()

class Slowest(Selection):
    def draw(self, state, population, count, rng):
        return {int(k): 1 for k in helper.order(population)[:count]}

class Mine(Options):
    def build(self, problem):
        return Averaging(problem=problem, selection=Slowest(), fraction=self.fraction)

def mine(problem, fraction, *, aggregation="partial"):
    import helper
    return Averaging(problem=problem, selection=Slowest(), fraction=fraction, aggregation=aggregation)

class Whole(Averaging):
    def __init__(self, problem, fraction):
        super().__init__(problem=problem, selection=Slowest(), fraction=fraction)

def broken(problem):
    raise KeyError("fraction")

number = 3
"""
HELPER = "import numpy as np\ndef order(population):\n    return np.argsort(-population.seconds)\n"


def arm(protocol: str | None = "mine:Mine", more: str = "fraction = 0.5") -> str:
    named = "" if protocol is None else f'protocol = "{protocol}"\n'
    return f'[[arm]]\nname = "Mine"\n{named}{more}\n'


def written(home: Path, *arms: str) -> Path:
    (home / "mine.py").write_text(MINE)
    (home / "helper.py").write_text(HELPER)
    path = home / "study.toml"
    path.write_text(text(*(arms or (arm(),)), rounds=1))
    return path


def selected(of: Study, folder: Path) -> list[int]:
    here = build(of, of.study.seeds[0])
    assert (slowest := sorted(here.population().seconds.argsort()[-3:].tolist()))
    found = spied(of, folder, here=here)[1].records[0]["selected"]
    assert found == slowest
    return found  # type: ignore[no-any-return]


@every("protocol", ["mine:Mine", "mine:mine", "mine:Whole"])
def test_a_file_beside_the_study_has_the_protocol(protocol: str, tmp_path: Path) -> None:
    path = written(tmp_path, arm(protocol), FEDAVG)
    of = read(path)
    assert [line for line in told(of) if line.startswith(f"The protocol of Mine comes from {protocol} in ")]
    with pytest.raises(ConfigError, match="--run-code"):
        require_no_code(of, run_code=False)
    assert not (tmp_path / "ran").exists(), "a look at the study ran its code"
    selected(of, tmp_path / "run")
    assert (tmp_path / "ran").exists()


def test_a_run_goes_on_with_the_code_that_it_began_with_alone(tmp_path: Path) -> None:
    path = written(tmp_path)
    out = tmp_path / "run"
    finished, _ = run_study(read(path), out, lambda *_: None)
    assert (finished.summary[0].protocol, finished.summary[0].aggregation) == ("mine:Mine", "partial")
    assert "mine:Mine in" in (out / "report.html").read_text()
    run_study(read(path), out, lambda *_: None)
    (tmp_path / "mine.py").write_text(MINE + "\n# another\n")
    with pytest.raises(DataError, match="other code of an arm's protocol"):
        run_study(read(path), out, lambda *_: None)


def test_what_others_can_write_is_no_protocol(tmp_path: Path) -> None:
    """The attack: another user of the machine changes the file of the protocol, or a helper of it."""
    path = written(tmp_path)
    for name in ("mine.py", "helper.py"):
        of = read(path)
        os.chmod(tmp_path / name, 0o666)
        with pytest.raises(ConfigError, match=f"{name}.*--trust-code"):
            composition(of, of.arms[0], build(of, 3))
        if name == "mine.py":
            assert "Refused" in told(of, refused=True)[0]
        composition(trusted := read(path, [tmp_path]), trusted.arms[0], build(trusted, 3))
        os.chmod(tmp_path / name, 0o644)


@every(
    ("own", "said"),
    [
        (arm(more="fractoin = 0.5"), "[arm 1] Unknown key `fractoin` (did you mean `fraction`?)"),
        (arm(more="fraction = 5.0"), "[arm 1] Expected fraction"),
        (arm("mine:mine", "fractoin = 0.5"), "[arm 1] Expected keys that mine:mine(problem, fraction"),
        (arm("mine:number"), "[arm 1] Expected mine:number as a dataclass with `build`"),
        (arm("mine:Mien"), "did you mean `Mine`?"),
        (arm("mien:Mine"), "[[arm]] Mine: Expected the module of 'mien:Mine'"),
        (arm("mine:broken", ""), "Expected mine:broken to build an algorithm, got KeyError: 'fraction'"),
    ],
)
def test_what_is_no_protocol_is_refused_with_its_arm(own: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, own)
    of = read(path)
    with pytest.raises(ConfigError) as caught:
        composition(of, of.arms[0], build(of, 3))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}: [")


# From Python ------------------------------------------------------------------------------------------------


class Slowest(Selection):
    def draw(self, state: Any, population: Any, count: int, rng: Any) -> dict[int, int]:
        return {int(k): 1 for k in np.argsort(-population.seconds)[:count]}


def slowest(problem: Any, fraction: float = 0.1) -> Averaging:
    return Averaging(problem=problem, selection=Slowest(), fraction=fraction)


def other(problem: Any, fraction: float) -> Averaging:
    return slowest(problem, fraction)


def test_a_function_from_python_is_the_arms_protocol(tmp_path: Path) -> None:
    given = text(arm(None), FEDAVG, rounds=1)
    of = study_from(given, protocol=slowest)
    selected(of, tmp_path / "one")
    assert of.arms[0].protocol == f"{__name__}:slowest"
    assert told(of) == []
    run = securefl.run(given, protocol=slowest, out=tmp_path / "run", workers=1, progress=False)
    assert list(run.epsilon.index) == ["Mine", "FedAvg"]
    with pytest.raises(DataError, match="other code of an arm's protocol"):
        securefl.run(
            given, protocol=lambda problem, fraction: slowest(problem), out=tmp_path / "run", progress=False
        )
    locked = partial(slowest, fraction=Lock())
    with pytest.raises(
        DataError, match=r"code that cannot be compared with it.*'_thread\.lock'.*another folder"
    ):
        securefl.run(given, protocol=locked, out=tmp_path / "run", progress=False)
    sweep = parse_sweep(given + '\n[sweep.grid]\n"study.rounds" = [1, 2]\n', brought=of.brought)
    assert {cell.study.brought.protocol for cell in sweep.cells} == {slowest}
    with pytest.raises(ConfigError, match="pass `protocol=`"):
        parse(given)
    with pytest.raises(ConfigError, match='Write `protocol = "fedavg"` in the arm'):
        study_from(given, protocol="fedavg")
    with pytest.raises(ConfigError, match="an arm without `protocol`"):
        study_from(text(FEDAVG), protocol=slowest)
    with pytest.raises(ConfigError, match=r"study\.text"):
        study_from(of, protocol=slowest)


@every(
    ("code", "key", "said"),
    [
        (
            "class Bare(Options):\n    alpha: float = 0.5\n    build = Mine.build",
            "alpha = 0.3",
            "`alpha` as a field",
        ),
        ("class Bare(Options):\n    pass", "", "got a dataclass without it"),
        (
            "from typing import Annotated\nfrom securefl.protocols.averaging import Range\n"
            "class Bare(Options):\n    own: Annotated[float, Range('0..1')] = 0.5",
            "",
            "Expected a range as mathematics writes it",
        ),
    ],
)
def test_what_a_class_of_options_lacks_is_named(code: str, key: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, arm("mine:Bare", f"fraction = 0.5\n{key}"))
    (tmp_path / "mine.py").write_text(f"{MINE}\n{code}\n")
    with pytest.raises(ConfigError, match=said):
        composition(of := read(path), of.arms[0], build(of, 3))
    remedy = "from dataclasses import dataclass\n@dataclass(frozen=True, kw_only=True)\n"
    mended = code.replace("    pass", "    build = Mine.build").replace("0..1", "[0, 1]")
    mended = mended.replace("class Bare", f"{remedy}class Bare")
    (tmp_path / "mine.py").write_text(f"{MINE}\n{mended}\n    build = Mine.build\n")
    composition(of := read(path), of.arms[0], build(of, 3))
