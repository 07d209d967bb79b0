"""Commands that may write nothing where files forbid it, also where the tests run as root."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

_ROOTS = "-dac_override,-dac_read_search,-fowner"
"""What lets root write past the modes of files."""


def bound_by_modes() -> list[str]:
    """The beginning of a command line whose process is bound by the modes of files; skips where none is."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root is not bound by the modes of files, and there is no setpriv(1)")
    return ["setpriv", "--bounding-set", _ROOTS, "--inh-caps", _ROOTS]


BOUND_BY_MODES = """
import ctypes, os
if os.geteuid() == 0:  # give all capabilities back
    none = ctypes.create_string_buffer(24)
    assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), none) == 0
"""
"""The beginning of a program for Linux that is bound by the modes of files from then on."""


def forbid_writing(folder: Path) -> None:
    """Take the right to write from a folder and all that is in it."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, and what is in it."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
