"""`party init` tells its owner what leaves without noise and what is accepted, whatever it has to ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from support.arms import hiding
from support.tiny_study import text, with_privacy

from securefl.commands.party import party

ARM = '[[arm]]\nname = "x"\nprotocol = "lg_fedavg"\naccepts_kept_state = true\n'
STUDY = with_privacy(
    text(ARM, clients=7, rounds=1), {"sum": '"masked"', **hiding(("lg_fedavg", "")), "secagg": '"active"'}
)


@pytest.mark.parametrize("words", [["--yes"], []])
def test_init_tells_the_acceptance(words: list[str], tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    terms = ["--unit", "record", "--adjacency", "replace-one", "--delta", "1e-4", "--budget", "inf"]
    made = ["init", str(tmp_path / "P"), str(study), "--client", "0", "--counter", str(tmp_path / "C")]
    done = CliRunner().invoke(party, [*made, *(words or terms)])
    assert done.exit_code == 0, done.output
    assert "accepts_kept_state" in done.output
    assert "without noise" in done.output
