"""Submits the packaged app of a study by Flower's own command `flwr run`, and follows what it says.

Command and app talk by a folder of their own, `flower-*` in the server's folder `run`. The command holds
`run`, so that there is one command, and the app the folder itself: each sees by the locks whether the other
still runs. The app appends a line of JSON for each event.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import tomli_w

from securefl.core.errors import ConfigError, SecureFLError
from securefl.core.text_safety import escaped
from securefl.data.files import data_folder
from securefl.deployment.folder import RUN
from securefl.deployment.gathering import RunLost, TooFewParties
from securefl.storage.files import write
from securefl.storage.folder_lock import locked, require_idle
from securefl.study.interruption import Interruption

APP: Final = Path(__file__).parent / "study_app"
TALK: Final = "talk"
"""The run config's word for the folder by which command and app talk."""
EVENTS: Final = "events.jsonl"
STOP: Final = "stop"
"""A file whose presence asks the app to stop after the round at hand."""
SHOWN: Final = ("round", "accuracy", "epsilon", "bytes_up", "bytes_down", "wall_seconds")
"""What a progress bar shows of a round's record."""
_OFFLINE: Final = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Nothing is sent to Flower's makers, unless the user's environment says otherwise."""
_MOST: Final = 500
_LOOK: Final = 0.5
_ASK, _ASK_RUNNING = 10.0, 60.0
"""Seconds between two questions to the SuperLink. Each is a process."""
_PATIENCE: Final = 300.0
Flwr = Callable[..., Mapping[str, Any]]
"""Runs a command of Flower's with these words. Returns its JSON."""


def flwr(*words: str) -> Mapping[str, Any]:
    """Run `flwr` with these words. Returns the JSON that it prints. Raises ConfigError if it fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "flwr.cli.app", *words, "--format", "json"],
            env={**_OFFLINE, **os.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"Expected `flwr {words[0]}` to end within {_PATIENCE:g} s, got no end.") from None
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {"success": False, "error-message": done.stderr or done.stdout}
    if done.returncode or not said.get("success"):
        why = " ".join(str(said.get("error-message", "no reason")).split())
        raise ConfigError(
            f"Expected `flwr {words[0]}` to succeed, got: {escaped(why)[:_MOST]} Name a SuperLink of "
            "$FLWR_HOME/config.toml with --flower, and see that it runs: `flwr ls NAME`."
        )
    return dict(said)


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A run that was submitted. name: for people. ended: why it is over, or empty; it may take seconds."""

    name: str
    ended: Callable[[], str] = lambda: ""


def submit(superlink: str, config: Mapping[str, Any], *, flwr: Flwr = flwr) -> Submitted:
    """Submit a run of the packaged app with this run config.

    superlink: the name of a connection in $FLWR_HOME/config.toml. Raises ConfigError if Flower refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        # A file, because a path may have characters that `flwr run` cannot quote.
        file = Path(folder) / "run.toml"
        write(file, tomli_w.dumps(config), secret=True)
        number = str(flwr("run", str(APP), superlink, "--run-config", str(file))["run-id"])

    def ended() -> str:
        (found,) = flwr("ls", superlink, "--run-id", number)["runs"]
        state, details = str(found["status"]), str(found.get("status-details", ""))
        return escaped(f"{state} {details}".strip())[:_MOST] if state.startswith("finished") else ""

    return Submitted(name=f"run {number} of the SuperLink {superlink!r}", ended=ended)


def held(folder: Path) -> bool:
    """Whether a process holds this folder (see `storage.folder_lock.locked`)."""
    try:
        require_idle(folder)
    except ConfigError:
        return True
    return False


@contextmanager
def talking(server: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """The folder by which this command and its app talk, in the server's folder. Its end ends the app.

    Raises ConfigError if another command or process runs the study of this server.
    """
    run = server.absolute() / RUN
    with locked(run, say):
        for old in run.glob("flower-*"):
            shutil.rmtree(old)
        require_idle(server)
        with tempfile.TemporaryDirectory(prefix="flower-", dir=run, ignore_cleanup_errors=True) as folder:
            yield Path(folder)


def follow(
    server: Path,
    out: Path,
    submit: Callable[[Mapping[str, Any]], Submitted],
    *,
    wait: float,
    deadline: float,
    tell: Callable[[Mapping[str, Any]], None],
    say: Callable[[str], None],
    stop: Interruption,
    trusted: Sequence[Path] = (),
    clock: Callable[[], float] = monotonic,
    pause: Callable[[float], None] = sleep,
) -> None:
    """Run, or resume, the study of a server's folder in a run of Flower, and follow it to its end.

    Args:
        server: the server's folder.
        out: the run folder.
        submit: submits a run with a run config.
        wait, deadline: seconds, as for `run_deployed` and `GridExchange`.
        tell: called for each finished round with the part of its record that progress bars show.
        say: prints a line for a person.
        trusted: the paths of --trust-code.
        stop: asked meanwhile. After a first request to stop, the round at hand is finished.
        clock, pause: read and wait for seconds; tests inject others.

    Raises:
        ConfigError: another process runs the study of this server, or Flower refuses the run.
        TooFewParties: as `run_deployed`.
        RunLost: the run did not start, or ended before the study did.
        Interrupted: after the round at hand, or before the run has started.
    """
    with talking(server, say) as talk:
        (talk / EVENTS).touch()
        run = submit(
            {
                TALK: str(talk),
                "server": str(server.absolute()),
                "out": str(out.absolute()),
                "place": str(Path.cwd()),
                "data": str(data_folder()),
                "trusted": os.pathsep.join(str(path.absolute()) for path in trusted),
                "wait": wait,
                "deadline": deadline,
            }
        )
        say(f"Submitted {run.name}. Waiting until it starts.")
        with (talk / EVENTS).open(encoding="utf-8") as events, stop.finishing("this round"):
            rest, started, silent, ask = "", False, 0, clock() + _ASK
            while True:
                alive = held(talk)  # before reading, so that the last words of a run that ended are read
                *lines, rest = (rest + events.read()).split("\n")
                for event in map(json.loads, lines):
                    if "line" in event:
                        say(event["line"])
                    elif "record" in event:
                        tell(event["record"])
                    elif not event["ended"]:
                        return
                    else:
                        stop.check()
                        raise _failure(run, event["ended"], escaped(event["why"]))
                started = started or alive or bool(lines)
                if started and not alive:
                    raise _failure(run, "its end", "without a word.")
                if not started:
                    stop.check()
                elif stop.asked:
                    (talk / STOP).touch()
                if clock() >= ask:
                    # If its SuperLink dies, a run tries to reach it without end.
                    try:
                        why, silent = run.ended(), 0
                    except ConfigError as error:
                        why, silent = "", silent + 1
                        if silent > 1:
                            raise _failure(run, "no answer of its SuperLink", str(error)) from None
                    if why and not started:
                        raise _failure(run, "its end", why)
                    ask = clock() + (_ASK_RUNNING if started and not silent else _ASK)
                pause(_LOOK)


def _failure(run: Submitted, kind: str, why: str) -> SecureFLError:
    if kind == TooFewParties.__name__:
        return TooFewParties(why)
    return RunLost(
        f"Expected {run.name} to run the study to its end, got {kind}: {why} The SuperLink must run on this "
        "machine, as this user, with securefl installed. Its log, and that of `flwr log`, say more."
    )
