"""Submits the packaged app that carries a coordinator's requests, by Flower's own command `flwr run`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import tomli_w

from securefl.core.errors import ConfigError
from securefl.core.text_safety import escaped
from securefl.flower.carrier import SOCKET, Submitted
from securefl.storage.files import write

APP: Final = Path(__file__).parent / "study_app"
_OFFLINE: Final = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Nothing is sent to Flower's makers, unless the user's environment says otherwise."""
_SHOWN: Final = 500
Flwr = Callable[..., Mapping[str, Any]]
"""Runs a command of Flower's with these words. Returns its JSON."""


def flwr(*words: str) -> Mapping[str, Any]:
    """Run `flwr` with these words. Returns the JSON that it prints. Raises ConfigError if it fails."""
    beside = Path(sys.executable).parent / "flwr"
    command = str(beside) if beside.exists() else shutil.which("flwr")
    if command is None:
        raise ConfigError(
            "Expected Flower's command flwr, got none. Install it: pip install 'securefl[flower]'."
        )
    done = subprocess.run(
        [command, *words, "--format", "json"],
        env={**_OFFLINE, **os.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {"success": False, "error-message": done.stderr or done.stdout}
    if done.returncode or not said.get("success"):
        why = " ".join(str(said.get("error-message", "no reason")).split())
        raise ConfigError(
            f"Expected `flwr {words[0]}` to succeed, got: {escaped(why)[:_SHOWN]} Name a SuperLink of "
            "$FLWR_HOME/config.toml with --flower, and see that it runs: `flwr ls NAME`."
        )
    return dict(said)


def submit(superlink: str, path: Path, *, flwr: Flwr = flwr) -> Submitted:
    """Submit a run that carries for the coordinator's socket at `path`.

    superlink: the name of a connection in $FLWR_HOME/config.toml. Raises ConfigError if Flower refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        # A file, because a path may have characters that `flwr run` cannot quote.
        config = Path(folder) / "run.toml"
        write(config, tomli_w.dumps({SOCKET: str(path.absolute())}), secret=True)
        said = flwr("run", str(APP), superlink, "--run-config", str(config))
    number = str(said["run-id"])
    return Submitted(
        name=f"run {number} of the SuperLink {superlink!r}", ended=partial(_ended, superlink, number, flwr)
    )


def _ended(superlink: str, number: str, flwr: Flwr) -> str:
    """How a run ended, in Flower's words; empty if it has not."""
    (found,) = flwr("ls", superlink, "--run-id", number)["runs"]
    state, details = str(found["status"]), str(found.get("status-details", ""))
    return escaped(f"{state} {details}".strip())[:_SHOWN] if state.startswith("finished") else ""
