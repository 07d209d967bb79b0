"""Options that commands of a matching share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from securefl.commands.choices import declared_options
from securefl.commands.main import cli
from securefl.core.errors import DataError
from securefl.matching import document
from securefl.matching.evaluator import Evaluator
from securefl.matching.key_holder import KeyHolder
from securefl.matching.options import Options
from securefl.matching.profiles import Anchor, Bounds
from securefl.matching.sealed import Profile


def test_another_evaluators_declaration_is_refused(tmp_path: Path) -> None:
    holder, evaluator, stranger = (
        KeyHolder.generate(parameters="pads"),
        Evaluator.generate(),
        Evaluator.generate(),
    )
    base, path = Profile(np.zeros(3), np.ones(3)), tmp_path / "declared.pub"
    for own in (evaluator, stranger):
        declaration = own.declare(holder.public, base, options=Options(parameters="pads"))
        document.write(path, declaration.to_document())
        found = declared_options(holder.public, own.public, path)
        assert found is not None
        assert found.declared is not None
    with pytest.raises(DataError):
        declared_options(holder.public, evaluator.public, path)


def test_a_client_is_told_what_the_evaluator_chose(tmp_path: Path) -> None:
    holder, evaluator = KeyHolder.generate(parameters="pads"), Evaluator.generate()
    scale = np.array([1.0, 1.0, 777.0])
    base, anchor = Profile(np.zeros(3), scale**2), Anchor(np.zeros(3), scale)
    options = Options(bounds=Bounds(weight=123, spread=9.5), anchor=anchor)
    for name, made in (
        ("K", holder.public.to_document()),
        ("V", evaluator.to_documents()[1]),
        ("D", evaluator.declare(holder.public, base, options=options).to_document()),
    ):
        document.write(tmp_path / name, made)
    (tmp_path / "p.json").write_text(json.dumps({"mean": [0.5] * 3, "variance": [1.0] * 3}))
    words = {"--public": "K", "--evaluator": "V", "--declared": "D", "--profile": "p.json", "-o": "p.enc"}
    flags = [part for flag, name in words.items() for part in (flag, str(tmp_path / name))]
    refused = CliRunner().invoke(cli, ["encrypt", *flags])
    assert isinstance(refused.exception, DataError)
    assert "--spread 9.5" in str(refused.exception)
    told = CliRunner().invoke(cli, ["encrypt", *flags, "--spread", "9.5"])
    assert told.exit_code == 0, told.output
    assert all(word in told.output for word in ("spread up to 9.5", "123", "anchor", "777"))
    compared = CliRunner().invoke(
        cli, ["encrypt", *flags, "--spread", "9.5", "--anchor", str(tmp_path / "p.json")]
    )
    assert isinstance(compared.exception, DataError)
    assert CliRunner().invoke(cli, ["encrypt", *flags, "--weight-bound", "4"]).exit_code == 2
