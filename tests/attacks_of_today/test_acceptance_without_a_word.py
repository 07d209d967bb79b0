"""An owner who states all four terms agrees to `accepts_kept_state` of a server's study without hearing of
it.

i59.1: "The owner's acceptance (a lying server may open single inputs of this arm)". `party init` tells it
in its question alone, and asks none if --unit, --adjacency, --delta and --budget are stated.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from unit.study.test_kept_state_of_studies import of

from securefl.commands.party import party


@pytest.mark.parametrize("words", [["--yes"], []])
def test_init_tells_the_acceptance(words: list[str], tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(of("lg_fedavg", more="accepts_kept_state = true").text)
    terms = ["--unit", "record", "--adjacency", "replace-one", "--delta", "1e-4", "--budget", "inf"]
    made = ["init", str(tmp_path / "P"), str(study), "--client", "0", "--counter", str(tmp_path / "C")]
    done = CliRunner().invoke(party, [*made, *(words or terms)])
    assert done.exit_code == 0, done.output
    assert "accepts_kept_state" in done.output
