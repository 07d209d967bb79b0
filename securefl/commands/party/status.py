"""The command `party status`: shows a party's releases, epsilon, sessions and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from securefl.commands.party.folder_argument import party_folder
from securefl.commands.printing import echo
from securefl.core.text_safety import escaped


@click.command(epilog="Example:  securefl party status P --json")
@party_folder
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
def status(folder: Path, as_json: bool) -> None:
    """Show a party's releases with their epsilon, its sessions, its missing values, and its refusals.

    FOLDER is a party's of a study, or one of an app of your own (`UpdateParty`). Each reason of a missing
    value says what to change. The server never learns it: it knows only that the party sent no value. A value
    that was cut to a bound reached the server like any other, and the server does not learn that it was cut.

    The party may run meanwhile. Nothing of this is ever sent, above all not the fingerprint of the records.
    """
    from securefl.deployment.status import status as found

    said = found(folder)
    if as_json:
        click.echo(json.dumps(said, indent=1))
        return
    # A study's name and a server's plan come from others, and may have control characters.
    for line in _lines(said):
        echo(escaped(line))
    echo("This is for the person at this machine: no epsilon covers it.", err=True)


def _lines(said: dict[str, Any]) -> list[str]:
    lines = [f"{said['name']}, a party of an app: its program has keys, roster and counter"]
    if "roster" in said:
        lines = [
            f"{said['name']} ({said['arm']}, seed {said['seed']}), keys {said['fingerprint']}",
            f"roster: {said['roster'] or 'none pinned'}",
            f"counter: {said['counter']['folder']} {said['counter']['wrong']}".rstrip(),
        ]
    if "terms" in said:
        terms, count = said["terms"], said["releases"]
        words = ", ".join(f"{name} {value}" for name, value in terms.items() if name != "adversaries")
        lines.append(f"terms: {words}, against {', '.join(terms['adversaries'])}")
        spent = ", ".join(f"{value} against the {party}" for party, value in said["epsilon"].items())
        lines.append(f"epsilon so far, in all studies: {spent}")
        lines.append(f"releases: {count['committed']} left, {count['reserved']} more reserved")
    if said.get("records"):
        newest = said["records"][-1]
        lines.append(f"records: SHA-256 {newest['digest']} since {newest['at']} ({newest['why']})")
    lines.append(f"sessions: {said['sessions']['count']}")
    lines += [f"  {one['at']}  {one['session'][:16]}  {one['study']}" for one in said["sessions"]["last"]]
    if bare := said["sessions"].get("bare"):
        lines.append(
            f"sessions without noise: {bare['used']} of {bare['allowed']} used. {bare['next']}".rstrip()
        )
    lines.append(f"missing values: {len(said['missing']) or 'none'}")
    lines += [f"  {one['at']}  {one['times']} x  {one['what']}: {one['why']}" for one in said["missing"]]
    if said["cut"]:
        lines.append(f"values cut to a bound: {sum(one['times'] for one in said['cut'])}")
        lines += [f"  {one['at']}  {one['times']} x  {one['why']}" for one in said["cut"]]
    lines.append(f"refusals: {len(said['refusals']) or 'none'}")
    lines += [f"  {one['at']}  {one['times']} x  {one['why']}" for one in said["refusals"]]
    return lines
