"""The ServerApp: it finds the parties' nodes and runs the study of its folder over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from securefl.deployment import run_deployed
from securefl.deployment.coordinator import others_of
from securefl.flower import GridExchange
from securefl.study.config import Arm

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    folder, out = Path(str(config["server"])), Path(str(config["out"]))
    names = others_of(folder)
    say = partial(append, out.with_suffix(".log"))
    try:
        exchange = GridExchange(grid, deadline=float(config["deadline"]), say=say)
        say(f"nodes of {', '.join(exchange.look(names, float(config['wait'])))}")
        _, page = run_deployed(folder, out, exchange, tell=partial(finished, say), say=say)
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
