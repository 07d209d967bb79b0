"""The ServerApp: it runs the study of its folder over the parties' nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from securefl.deployment import run_deployed
from securefl.flower import GridExchange
from securefl.study.config import Arm

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    folder, out = Path(str(config["server"])), Path(str(config["out"]))
    say = partial(append, out.with_suffix(".log"))
    try:
        exchange = GridExchange(grid, deadline=float(config["deadline"]), say=say)
        tell = partial(finished, say)
        _, page = run_deployed(folder, out, exchange, tell=tell, say=say, wait=float(config["wait"]))
        say(f"report {page}")
    except Exception as error:  # said and raised again, whatever it is: Flower keeps the reason to itself
        say(f"failed: {error}")
        raise


def finished(say: Callable[[str], None], arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
    """Say the accuracy of a round. Who took no part in it is said by `run_deployed`."""
    say(f"round {record['round']}: accuracy {record['accuracy']:.3f}")


def append(log: Path, text: str) -> None:
    """A line in a file of the server's: Flower keeps what an app prints to itself."""
    print(text, flush=True)
    with log.open("a") as file:
        file.write(text + "\n")
