"""The command line in this process."""

from __future__ import annotations

import sys

import pytest

from securefl.commands.main import main


def securefl(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    old, sys.argv = sys.argv, ["securefl", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as left:
            main()
    finally:
        sys.argv = old
    out, err = capfd.readouterr()
    assert isinstance(left.value.code, int)
    assert "Traceback" not in err
    return left.value.code, out, err
