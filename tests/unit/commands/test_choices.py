"""Options that commands of a matching share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from securefl.commands.choices import declared_options, require_free
from securefl.core.errors import ConfigError, DataError
from securefl.matching import document
from securefl.matching.evaluator import Evaluator
from securefl.matching.key_holder import KeyHolder
from securefl.matching.options import Options
from securefl.matching.sealed import PROFILE, Profile


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


def test_an_output_replaces_no_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    require_free(path, PROFILE)
    path.write_text("notes")
    with pytest.raises(ConfigError):
        require_free(path, PROFILE)
