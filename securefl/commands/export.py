"""The command `export`: writes a trained model as a safetensors file."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.choices import NEW_FILE, PATH, with_json
from securefl.commands.printing import echo, echo_json
from securefl.commands.telling import with_run_code
from securefl.core.lazy import loading


@click.command(epilog="Example:  securefl export runs/gas --arm FedAvg -o model.safetensors")
@click.argument("folder", metavar="RUN", type=PATH)
@click.option("--arm", help="The arm; needed if RUN has several.")
@click.option("--seed", type=int, help="The seed; default: the study's first.")
@click.option("--client", type=int, help="The client's number, if clients have personal models.")
@click.option(
    "-o",
    "--out",
    type=NEW_FILE,
    required=True,
    help="The file to write, .safetensors or .onnx.",
)
@with_run_code
@with_json("Print the card as JSON, and nothing else.")
def export(
    folder: Path,
    arm: str | None,
    seed: int | None,
    client: int | None,
    out: Path,
    run_code: bool,
    trusted: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Export the trained model of an arm from the finished run in folder RUN.

    If clients have personal models, the file has the shared part, or with --client the whole model of one
    client. The card in the file's header describes the model: study, data, what each party learns, epsilon
    per party, the ledger's head, rounds, accuracy, and the columns, labels and options with which it reads
    tables. `securefl predict` and `securefl.load` load the file. RUN is not changed. A run whose study names
    code needs --run-code.

    With the ending .onnx the same model is written for ONNX (the extra `onnx`). Its input `x` is
    the encoded record, and its metadata have the card.
    """
    with loading("securefl.study.export"):
        from securefl.study.export import require_kind, rows, taken
        from securefl.study.folder import study_of
        from securefl.study.own_code import require_no_code
        from securefl.training.devices import one_thread

    require_kind(out)
    study = study_of(folder, trusted=trusted)
    require_no_code(study, run_code)
    with one_thread():
        found = taken(study, folder, arm, seed, client)
    found.write(out)
    if as_json:
        echo_json(found.card, 2)
        return
    for what, words in rows(found.card):
        echo(f"{what:9} {words}")
    echo(f"File: {out}")
