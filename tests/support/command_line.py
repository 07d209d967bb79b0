"""The command line in this process."""

from __future__ import annotations

import sys
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result

from securefl.commands.exit_codes import ExitCode
from securefl.commands.main import cli, main


def said(*words: object) -> Result:
    """What a command says and returns; an error is in the result."""
    return CliRunner().invoke(cli, [str(word) for word in words])


def done(*words: object) -> str:
    """What a command says on stdout, if it ended well: a model of a few rounds may have learnt nothing."""
    found = said(*words)
    assert found.exit_code in (ExitCode.DONE, ExitCode.UNLEARNT), (found.output, found.exception)
    return found.stdout


def securefl(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    words = ["securefl", *map(str, arguments)]
    with patch.object(sys, "argv", words), pytest.raises(SystemExit) as left:
        main()
    out, err = capfd.readouterr()
    assert isinstance(left.value.code, int)
    assert "Traceback" not in err
    return left.value.code, out, err
