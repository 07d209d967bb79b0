"""The packaged app of a study: its rounds in a ServerApp, and a relay on each node.

    securefl party coordinate         a run on the SuperLink             a site
    progress, report  <-- folder -->  ServerApp: rounds  <-- Flower -->  ClientApp <-- socket --> party

The command submits the app (`submitting`). The ServerApp runs on the command's machine, under its user: it
reads the server's folder and keys there. What it says goes into a folder of the command's. It ends with the
command: at once if that is gone, and after the round at hand if the command was asked to stop.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from signal import SIGTERM
from threading import Thread
from time import monotonic, sleep
from typing import Any, Final

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from securefl.core.errors import ConfigError
from securefl.deployment.coordinator import run_deployed
from securefl.flower.exchange import GridExchange
from securefl.flower.secure_app import secure
from securefl.flower.submitting import EVENTS, SHOWN, STOP, TALK, held
from securefl.storage.folder_lock import locked
from securefl.study.interruption import Interrupted, Told
from securefl.training import single_thread

_GRACE: Final = 10.0


client_app = secure(ClientApp())
"""The app of a site. Its inner app has no function, since the parties of a study train by themselves."""


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or resume, the study of the command that submitted this run."""
    config = context.run_config
    if not config.get(TALK):
        raise ConfigError(
            f"Expected {TALK} in the run config, got none: this app runs a study for `securefl party "
            "coordinate --flower`, which submits it. Call that command."
        )
    os.chdir(str(config["place"]))  # as the command: its study may name files from there
    os.environ["SECUREFL_DATA"] = str(config["data"])
    single_thread()
    Thread(target=_ending, args=(Path(str(config[TALK])),), daemon=True).start()
    play(grid, config)


def _gone(talk: Path) -> bool:
    """Whether the command of this talk has ended."""
    # A later command of the same server removes the folders of earlier ones.
    return not talk.is_dir() or not held(talk.parent)


def _ending(talk: Path) -> None:
    """End this process some seconds after its command. Flower may be trying to reach a dead SuperLink."""
    while not _gone(talk):
        sleep(1.0)
    sleep(_GRACE)
    os._exit(1)


def play(
    grid: Grid,
    config: Mapping[str, Any],
    *,
    clock: Callable[[], float] = monotonic,
    pause: Callable[[float], None] = sleep,
) -> None:
    """Run a study with this run config (see `submitting.submit`), and say all of it in the talk's folder.

    Raises ConfigError if the command that submitted this run has ended, and what `run_deployed` raises.
    """
    talk = Path(str(config[TALK]))

    def looking(seconds: float) -> None:
        if _gone(talk):
            raise Interrupted(SIGTERM)
        pause(seconds)

    if _gone(talk):
        raise ConfigError(f"Expected the command that submitted this run, got its end: {talk} is not held.")
    with locked(talk), (talk / EVENTS).open("a", encoding="utf-8") as events:

        def tell(**event: Any) -> None:
            events.write(json.dumps(event) + "\n")
            events.flush()

        def say(line: str) -> None:
            print(line, flush=True)  # in `flwr log`
            tell(line=line)

        def told(arm: object, seed: int, record: Mapping[str, Any]) -> None:
            tell(record={name: record[name] for name in SHOWN})

        exchange = GridExchange(grid, deadline=config["deadline"], say=say, clock=clock, pause=looking)
        stop = Told(lambda: _gone(talk) or (talk / STOP).exists())
        try:
            run_deployed(
                Path(config["server"]),
                Path(config["out"]),
                exchange,
                tell=told,
                stop=stop,
                say=say,
                wait=config["wait"],
                trusted=tuple(map(Path, filter(None, str(config.get("trusted", "")).split(os.pathsep)))),
                clock=clock,
                pause=looking,
            )
        except BaseException as error:
            tell(ended=type(error).__name__, why=str(error))
            if not isinstance(error, Interrupted):  # which is no failure
                raise
        else:
            tell(ended="", why="")
