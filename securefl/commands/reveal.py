"""The command `reveal`: the key holder decrypts the scores of a matching."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securefl.commands.choices import FILE, with_json, within
from securefl.commands.exit_codes import ExitCode
from securefl.commands.printing import echo, echo_json
from securefl.core.errors import DataError

if TYPE_CHECKING:
    from securefl.matching.key_holder import Revealed
    from securefl.matching.options import Word


@click.command(
    epilog="Example:  securefl reveal --secret K/secret.key --evaluator V/evaluator.pub scores.enc --json"
)
@click.option("--secret", type=FILE, required=True, help="Your secret.key.")
@click.option("--evaluator", type=FILE, required=True, help="The evaluator's evaluator.pub.")
@click.option(
    "--client",
    "clients",
    type=FILE,
    multiple=True,
    help="A client.pub, once for each client: under --params strong and compact.",
)
@click.option(
    "--spread",
    type=float,
    help="Largest spread of a declared baseline's weights that you agree to; default 8.",
)
@with_json()
@click.argument("scores", type=FILE)
def reveal(
    secret: Path,
    evaluator: Path,
    clients: tuple[Path, ...],
    spread: float | None,
    as_json: bool,
    scores: Path,
) -> None:
    """Decrypt the SCORES that the evaluator signed, and print them by the names of the profiles' files.

    Beside the secret key, openings-<fingerprint>.sqlite counts the openings, and ledger.sqlite has the
    releases. A key opens a declared number of scores; the same file again is no second opening. Each score
    is of the profile as its client clipped it to the bounds. The exit code is 1 if a score was refused.

    Under --params strong and compact only what the clients of --client signed is opened, with the declared
    baseline. An evaluator alone then gets nothing else; together with one of these
    clients it has you read any entry of a profile, and digits of your key. You learn the baseline.

    Under --params strong-encrypted nothing is checked: an evaluator that forges requests reads the whole
    secret key of such profiles within a few hundred openings. The declared number does not prevent that; it
    only limits the number of scores. Under --params pads and pads-128 there is no such key. A forged request
    then shows you one word of a profile in place of its score, and of each encrypted file one request is
    answered.
    """
    from securefl.accounting.ledger import Ledger, Terms
    from securefl.he.openings import Openings
    from securefl.matching import document
    from securefl.matching.clients import ClientPublic
    from securefl.matching.key_holder import KeyHolder
    from securefl.matching.keys import EvaluatorPublic
    from securefl.matching.sealed import Scores

    keys = document.load(secret, KeyHolder)
    server = document.load(evaluator, EvaluatorPublic)
    signed = document.load(scores, Scores)
    given = [document.load(path, ClientPublic) for path in clients]
    terms = Terms(unit="record", adjacency="replace-one", delta=1e-5)
    home, session = secret.parent, bytes.fromhex(keys.public.session)
    # Always 16 digits: under another name, a key's openings would be counted from 0 again.
    counted = home / f"openings-{keys.public.session[:16]}.sqlite"
    with (
        Ledger(home / "ledger.sqlite", terms) as ledger,
        closing(Openings(counted)) as openings,
    ):
        # Count and ledger are bound to each other, so that a lost and re-created one is detected.
        openings.bind(ledger.identity)
        released = sum(row[7] == "committed" and row[1] == session for row in ledger.rows())
        # Every release of this key is an opening, so a count below the number of releases was lost.
        if openings.opened < released:
            raise DataError(
                f"Expected {counted} to count at least the {released} releases of the ledger beside it, got "
                f"{openings.opened} openings: the count is lost. Make new keys."
            )
        found = keys.reveal(signed, server, clients=given, openings=openings, ledger=ledger, spread=spread)
    _tell(found, signed.header["parameters"], as_json)


def _tell(found: Revealed, params: Word, as_json: bool) -> None:
    if as_json:
        shown: dict[str, Any] = {"scores": found.scores, "error_bound": found.error_bound}
        if found.refused:
            shown["refused"] = found.refused
        echo_json(shown, 2)
    else:
        for label, score in found.scores.items():
            echo(f"{label}  {score:.6g}")
        echo(f"all {within(found.error_bound, params)}")
    for label, why in found.refused.items():
        echo(f"securefl: {label} refused: {why}", err=True)
    if found.refused:
        raise SystemExit(ExitCode.ERROR)
