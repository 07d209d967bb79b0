"""The command `party init`: makes a party's folder with its plan, keys and ledger."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securefl.commands.party.agreeing import agreed
from securefl.commands.printing import echo
from securefl.commands.telling import find, with_trust

if TYPE_CHECKING:
    from securefl.algorithm.plan import Plan


@click.command(epilog="Example:  securefl party init P study.toml --client 0 --budget 8 --delta 1e-5")
@click.argument("folder", type=click.Path(path_type=Path, readable=False))
@click.argument("study")
@click.option("--client", type=click.IntRange(0), help="The client's number in the study.")
@click.option("--key-holder", is_flag=True, help="The study's key holder.")
@click.option("--server", is_flag=True, help="The study's server, with keys and a roster line.")
@click.option("--arm", help="The arm; needed if the study has several.")
@click.option("--seed", type=int, help="The seed; by default the study's first.")
@click.option("--unit", type=click.Choice(["record", "client"]), help="The holder's term.")
@click.option(
    "--adjacency", type=click.Choice(["add-remove", "replace-one", "zero-out"]), help="The holder's term."
)
@click.option("--delta", type=float, help="The holder's term: delta of epsilon.")
@click.option("--budget", type=float, help="The holder's term: the largest epsilon ever; inf for no limit.")
@click.option(
    "--records",
    type=click.Path(path_type=Path, readable=False),
    help="The client's own records, .npz with x and y; by default its part of the study's data.",
)
@click.option(
    "--counter",
    type=click.Path(path_type=Path, readable=False),
    help="A folder that stores the party's progress, outside any backup of FOLDER.",
)
@click.option(
    "--sessions",
    type=int,
    help="The sessions without noise that you agree to, over all studies; 1 by default, or as before.",
)
@click.option("--again", is_flag=True, help="Give the party in FOLDER another plan. Ledger and keys stay.")
@with_trust
@click.option("--yes", is_flag=True, help="Agree to the study's terms without being asked.")
def init(
    folder: Path,
    study: str,
    client: int | None,
    key_holder: bool,
    server: bool,
    arm: str | None,
    seed: int | None,
    records: Path | None,
    counter: Path | None,
    sessions: int | None,
    again: bool,
    trusted: tuple[Path, ...],
    yes: bool,
    **stated: Any,
) -> None:
    """Make a party's FOLDER from a STUDY: its plan file, its keys, and, for a client, its one ledger.

    Unit, adjacency, delta and budget are the holder's terms, and hold for every study. If you state them
    here, a study with other terms is refused. The others are taken from the study, and you are asked to
    agree.

    The server could compare sums without noise of several sessions. So the party takes part in one session
    with such sums, or in as many as you state by --sessions.
    """
    from securefl.core.errors import ConfigError
    from securefl.core.messages import client_name
    from securefl.deployment import folder as folders
    from securefl.deployment.party_setup import Made
    from securefl.training import single_thread

    if (client is not None) + key_holder + server != 1:
        raise click.UsageError("Name one of --client N, --key-holder and --server.")
    single_thread()
    found = find(study, trusted)
    chosen = found.study.seeds[0] if seed is None else seed
    if chosen not in found.study.seeds:
        raise ConfigError(f"Expected one of the study's seeds {found.study.seeds}, got {chosen}.")
    part = folders.Part(
        name="server" if server else "key-holder" if client is None else client_name(client),
        arm=folders.arm_of(found, arm),
        seed=chosen,
        counter=counter,
        records=records,
        sessions=sessions,
    )
    made = Made.of(found, part.arm, chosen)
    if client is not None:
        _agree(made.plan, stated, yes)
    content = (folders.renew if again else folders.init)(folder, made, part)
    echo(f"{folder / 'party.toml'}: {content.name} of {found.study.name}, {content.arm}.")
    if client is not None:
        echo(_records(client, records))
        if unprotected := _unprotected(made.plan):
            echo(unprotected)
    if client is not None and made.bare:
        echo(f"It enters {content.sessions} session(s) without noise, over all studies (--sessions).")
    echo(f"Its counter is {content.counter}: keep it out of the folder's backups.")
    if not content.roster:
        echo(f"Next: securefl party enrol {folder}")


def _records(client: int, records: Path | None) -> str:
    """A sentence on the client's records, since it would train on the study's without a sign."""
    if records is not None:
        return f"Its records are those of {records}."
    return (
        f"Its records are the part of the study's data that the study deals to client {client}. For its own: "
        "--records FILE.npz."
    )


def _unprotected(plan: Plan) -> str:
    """A sentence on what leaves without noise, and one on what is accepted. Empty if nothing does."""
    said = f"It sends {', '.join(plan.non_private)} without noise." if plan.non_private else ""
    if plan.accepts_kept_state:
        said += " The server may open single ones of them (accepts_kept_state)."
    return said


def _agree(plan: Plan, stated: dict[str, Any], yes: bool) -> None:
    """Compare the study's terms with the holder's, and ask for agreement to those not stated."""
    from securefl.core.errors import ConfigError

    budget = inf if plan.budget is None else plan.budget
    terms = {"unit": plan.unit, "adjacency": plan.adjacency, "delta": plan.delta, "budget": budget}
    own = {name: value for name, value in stated.items() if value is not None}
    other = [f"{name} = {terms[name]} in place of {own[name]}" for name in own if terms[name] != own[name]]
    if other:
        raise ConfigError(
            f"Expected a study with the terms that you state, got {'; '.join(other)}. Ask for a study with "
            "your terms, or state others."
        )
    if len(own) == len(terms) or yes:
        return
    words = ", ".join(f"{name} {value}" for name, value in terms.items())
    said = f"The study's terms: {words}, against {', '.join(plan.adversaries)}. {_unprotected(plan)}"
    echo(said.rstrip(), err=True)
    if not agreed("The ledger keeps these terms for ever, in every study. Agree?"):
        raise ConfigError("Expected your agreement to the terms, got none: nothing was made.")
