"""The group `party`: commands to make, run and look after a party on a machine of its own."""

from __future__ import annotations

import click

from securefl.commands.party.allow import allow
from securefl.commands.party.coordinate import coordinate
from securefl.commands.party.enrol import enrol
from securefl.commands.party.init import init
from securefl.commands.party.pin import pin
from securefl.commands.party.recount import recount
from securefl.commands.party.rotate import rotate
from securefl.commands.party.serve import serve
from securefl.commands.party.status import status
from securefl.commands.printing import Group


@click.group(cls=Group, epilog="Example:  securefl party init P study.toml --client 0")
def party() -> None:
    """Deploy a party on a machine of its own: a client, the key holder or the server.

    \b
    securefl party init P study.toml --client 0     make a folder with a plan, a ledger and keys
    securefl party enrol P                          print its line for the roster
    securefl party pin P roster.jsonl               pin the roster that all parties agreed on
    securefl party serve P                          run its process
    securefl party coordinate SERVER --out RUN      run the study with parties that serve
    securefl party status P                         show its releases, sessions and refusals
    securefl party allow P --sessions 2             agree to more sessions without noise
    """


for _command in (init, enrol, pin, serve, coordinate, status, allow, rotate, recount):
    party.add_command(_command)
