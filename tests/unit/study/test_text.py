"""Text in studies: codes of characters, a recurrent model, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.every import every
from support.tiny_study import run, text

from securefl.core.errors import ConfigError
from securefl.data import shakespeare
from securefl.study import own_code, world
from securefl.study.config import Study, parse

ARMS = {
    "fedavg": '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\naggregation = "partial"\n',
    "fedprof": '[[arm]]\nname = "x"\nprotocol = "fedprof"\nfraction = 1.0\n',
    "adds": '[[arm]]\nname = "x"\nprotocol = "adds"\nfraction = 1.0\nrate = 0.1\n',
}


def study(
    protocol: str = "fedavg", extra: str = "", model: str = 'kind = "char_lstm"\nwidth = 0.03'
) -> Study:
    written = text(ARMS[protocol], clients=3, extra=extra)
    written = written.replace('"digits"', '"shakespeare"').replace('kind = "iid"', 'kind = "natural"')
    return parse(written.replace('kind = "mlp"\nhidden = [8]', model))


@pytest.fixture(autouse=True)
def a_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three roles, each of whom says a few words over and over."""
    said = {"ROMEO": "but soft what light ", "JULIET": "o romeo romeo ", "NURSE": "madam madam lady "}
    blocks = [f"{name}:\n{(words * 200)[:2100]}" for name, words in said.items()]
    split = shakespeare.split("\n\n".join(blocks), np.random.default_rng(0))
    monkeypatch.setattr(own_code, "load", lambda *_, **__: split)


@pytest.mark.parametrize("protocol", [pytest.param("fedavg", marks=pytest.mark.slow), "fedprof", "adds"])
def test_a_study_of_text_learns_the_next_character(protocol: str, tmp_path: Path) -> None:
    finished = run(study(protocol), tmp_path)
    first, last = (finished.records[at]["loss"] for at in (0, -1))
    assert last < first < np.log(30)
    assert not finished.records[-1]["abstained"]
    if protocol == "adds":
        figures = finished.records[0]["figures"]
        assert set(figures) == {"parameters", "macs", "skew", "rate of fc1"}
        assert (np.array(figures["parameters"][1]) < 1).all()


@every(
    ("settings", "said"),
    [
        ({"model": 'kind = "mlp"'}, r"reads text for 'shakespeare', got kind 'mlp'. Take char_lstm"),
        ({"extra": "[corruption]\nnoisy = 0.5\n"}, r"\[corruption\] Expected no such section for text"),
    ],
)
def test_what_does_not_fit_text_is_named(settings: dict[str, str], said: str) -> None:
    of = study(**settings)
    with pytest.raises(ConfigError, match=said):
        world.build(of, 3)


def test_text_under_a_finite_epsilon_is_refused() -> None:
    """Its vocabulary was read off all records."""
    written = study().text.replace('noise = "none"', 'noise = "local"\nepsilon = 2.0')
    with pytest.raises(ConfigError, match="vocabulary"):
        world.build(parse(written), 3)
