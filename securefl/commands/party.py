"""The group `party`: commands to make, run and look after a party on a machine of its own.

The command that plays a study with such parties is in `coordinate`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securefl.commands.choices import FILE, with_json
from securefl.commands.coordinate import coordinate, party_folder
from securefl.commands.printing import Group, echo, echo_json
from securefl.commands.telling import find, with_trust
from securefl.core.errors import ConfigError

if TYPE_CHECKING:
    from securefl.algorithm.plan import Plan
    from securefl.core.agreement import Member


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


party.add_command(coordinate)


def _require_yes(question: str, *, otherwise: str) -> None:
    """Ask a question on stderr, and read the answer from stdin.

    Raises ConfigError for any answer but a yes, and if there is none, because stdin is closed or at its end.
    """
    click.echo(f"{question} [y/N]: ", nl=False, err=True)
    # Not click.confirm, which ends the process silently at the end of stdin, and with a traceback if stdin is
    # closed.
    answer = "" if sys.stdin is None else sys.stdin.readline()
    if not answer:
        click.echo(err=True)
        raise ConfigError("Expected an answer on stdin, got its end: nothing was changed. Agree with --yes.")
    if answer.strip().lower() not in ("y", "yes"):
        raise ConfigError(otherwise)


@party.command(epilog="Example:  securefl party init P study.toml --client 0 --budget 8 --delta 1e-5")
@click.argument("folder", type=FILE)
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
    type=FILE,
    help="The client's own records, .npz with x and y; by default its part of the study's data.",
)
@click.option(
    "--counter", type=FILE, help="A folder that stores the party's progress, outside any backup of FOLDER."
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
    from securefl.core.messages import client_name
    from securefl.deployment import folder as folders
    from securefl.deployment.party_setup import PartyStudy, in_words
    from securefl.training import single_thread

    if (client is not None) + key_holder + server != 1:
        raise click.UsageError("Name one of --client N, --key-holder and --server.")
    single_thread()
    found = find(study, trusted)
    part = folders.PartyOptions(
        name="server" if server else "key-holder" if client is None else client_name(client),
        arm=found.arm_of(arm),
        seed=found.seed_of(seed),
        counter=counter,
        records=records,
        sessions=sessions,
    )
    made = PartyStudy.of(found, part.arm, part.seed)
    if client is not None:
        _agree(made.plan, stated, yes)
    content = (folders.renew if again else folders.init)(folder, made, part)
    echo(f"{folder / 'party.toml'}: {content.name} of {found.study.name}, {content.arm}.")
    if client is not None:
        # It would train on the study's records without a sign.
        theirs = f"the part of the study's data that the study deals to client {client}. For its own: "
        echo(
            f"Its records are {f'{theirs}--records FILE.npz' if records is None else f'those of {records}'}."
        )
        if unprotected := _unprotected(made.plan):
            echo(unprotected)
        if made.bare:
            echo(f"It enters {content.sessions} session(s) without noise, over all studies (--sessions).")
    for name, digest in content.files.items():
        echo(f"It agrees to the {in_words(name)} of SHA-256 {digest[:12]}, and joins no session with others.")
    echo(f"Its counter is {content.counter}: keep it out of the folder's backups.")
    if not content.roster:
        echo(f"Next: securefl party enrol {folder}")


def _unprotected(plan: Plan) -> str:
    """A sentence on what leaves without noise, and one on what is accepted. Empty if nothing does."""
    said = f"It sends {', '.join(plan.non_private)} without noise." if plan.non_private else ""
    if plan.accepts_kept_state:
        said += " The server may open single ones of them (accepts_kept_state)."
    return said


def _agree(plan: Plan, stated: dict[str, Any], yes: bool) -> None:
    """Compare the study's terms with the holder's, and ask for agreement to those not stated."""
    from securefl.deployment.plan_file import HolderTerms

    found = HolderTerms.of(plan)
    terms = found.words()
    del terms["adversaries"]
    own = {name: value for name, value in stated.items() if value is not None}
    other = found.differing(own)
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
    _require_yes(
        "The ledger keeps these terms for ever, in every study. Agree?",
        otherwise="Expected your agreement to the terms, got none: nothing was made.",
    )


@party.command(epilog="Example:  securefl party enrol P >> roster.jsonl")
@party_folder
def enrol(folder: Path) -> None:
    """Print a party's line of the roster: JSON with its name, two public keys and their fingerprint.

    Send the line to the maker of the roster, and tell them the fingerprint over another channel, such as a
    telephone. Otherwise an attacker that changes the line on its way can impersonate the party.
    """
    from securefl.deployment import plan_file
    from securefl.deployment.pinning import newest_keys

    _echo_line(newest_keys(folder, plan_file.read(folder)).member())


def _echo_line(own: Member, more: str = "") -> None:
    """Print a line of the roster on stdout, and its fingerprint on stderr."""
    from securefl.deployment.roster import fingerprint, line_of

    click.echo(line_of(own))
    echo(f"{own.name}: fingerprint {fingerprint(own)}{more}", err=True)


@party.command(epilog="Example:  securefl party pin P roster.jsonl")
@party_folder
@click.argument("roster", type=FILE)
@click.option("--digest", help="The roster's digest, or its first 16 digits, as others have it.")
@click.option("--yes", is_flag=True, help="Pin it without being asked.")
def pin(folder: Path, roster: Path, digest: str | None, yes: bool) -> None:
    """Pin the ROSTER that all parties agreed on: a line for each party, in any order.

    Its digest is written into the plan file. Compare the digest with the other parties over another channel
    than the roster's. No server can change the roster afterwards: the party refuses a session with another
    one.
    """
    from securefl.deployment import pinning
    from securefl.deployment.roster import LARGEST, fingerprint, parse
    from securefl.storage.texts import read_text

    text = read_text(roster, LARGEST)
    pinned = parse(text, str(roster))
    found = pinned.digest.hex()
    if digest is not None and (len(digest) < 16 or not found.startswith(digest.lower())):
        raise ConfigError(
            f"Expected a roster with digest {digest}, got {found}: it is another roster, or the digest has "
            "fewer than 16 digits. Ask the maker of the roster."
        )
    for member in pinned.members.values():
        echo(f"{member.name}  {fingerprint(member)}", err=True)
    if not yes and digest is None:
        _require_yes(
            f"The digest is {found}. Do the other parties have the same?",
            otherwise="Expected a digest that all have, got none: nothing was pinned.",
        )
    content = pinning.pin(folder, pinned, text)
    echo(f"{content.name}: pinned {len(pinned.members)} parties, digest {found}")


@party.command(epilog="Example:  securefl party serve P --allow flower")
@party_folder
@click.option("--socket", type=FILE, help="The socket; by default FOLDER/run/party.sock.")
@click.option(
    "--allow",
    multiple=True,
    metavar="USER",
    help="A user that may connect, by name or number; may be repeated. By default your own user.",
)
@click.option("--new-records", default="", metavar="WHY", help="Accept changed records, and note the reason.")
@with_trust
def serve(folder: Path, socket: Path | None, allow: tuple[str, ...], **more: Any) -> None:
    """Run a client or the key holder on a Unix socket, until it is stopped.

    The socket exists once the party is ready. Its group may open it, but the party accepts only the users
    that --allow names. It notes refusals for `securefl party status`.
    """
    from securefl.deployment.peers import require_platform, user_of

    require_platform()
    # Below the check: some of it cannot be imported where the check fails.
    from securefl.deployment.folder import SOCKET
    from securefl.deployment.folder import serve as serve_party
    from securefl.study.interruption import Interrupted, Interruption

    users = frozenset(map(user_of, allow)) or frozenset({os.getuid()})
    path = (socket or folder / SOCKET).absolute()

    def ready(name: str) -> None:
        echo(f"{name} serves on {path} for {', '.join(map(str, sorted(users)))}. Ctrl-C stops it.")

    try:
        with Interruption():
            serve_party(folder, path, allow=users, ready=ready, **more)
    except Interrupted as interrupted:
        raise SystemExit(interrupted.exit_code) from None


@party.command(epilog="Example:  securefl party status P --json")
@party_folder
@with_json()
def status(folder: Path, as_json: bool) -> None:
    """Show a party's releases with their epsilon, its sessions, its missing values, and its refusals.

    FOLDER is a party's of a study, or one of an app of your own (`UpdateParty`). Each reason of a missing
    value says what to change. The server never learns it: it knows only that the party sent no value. A value
    that was cut to a bound reached the server like any other, and the server does not learn that it was cut.

    The party may run meanwhile. Nothing of this is ever sent, above all not the fingerprint of the records.
    """
    from securefl.deployment.status import status

    said = status(folder)
    if as_json:
        echo_json(said, 1)
        return
    # A study's name and a server's plan come from others, and may have control characters.
    for line in status_lines(said):
        echo(line)
    echo("This is for the person at this machine: no epsilon covers it.", err=True)


def status_lines(said: dict[str, Any]) -> list[str]:
    """A party's status in lines for a person. They may quote other people's control characters."""
    lines = [f"{said['name']}, a party of an app: its program has keys, roster and counter"]
    if "roster" in said:
        lines = [
            f"{said['name']} ({said['arm']}, seed {said['seed']}), keys {said['fingerprint']}",
            f"roster: {said['roster'] or 'none pinned'}",
            f"counter: {said['counter']['folder']} {said['counter']['wrong']}".rstrip(),
        ]
    if "terms" in said:
        terms, count = dict(said["terms"]), said["releases"]
        against = ", ".join(terms.pop("adversaries"))
        words = ", ".join(f"{name} {value}" for name, value in terms.items())
        spent = ", ".join(f"{value} against the {party}" for party, value in said["epsilon"].items())
        lines += [
            f"terms: {words}, against {against}",
            f"epsilon so far, in all studies: {spent}",
            f"releases: {count['committed']} sent, {count['reserved']} more reserved",
        ]
    for newest in said.get("records", [])[-1:]:
        lines.append(f"records: SHA-256 {newest['digest']} since {newest['at']} ({newest['why']})")
    sessions = said["sessions"]
    lines.append(f"sessions: {sessions['count']}")
    lines += [f"  {one['at']}  {one['session'][:16]}  {one['study']}" for one in sessions["last"]]
    if bare := sessions.get("bare"):
        lines.append(
            f"sessions without noise: {bare['used']} of {bare['allowed']} used. {bare['next']}".rstrip()
        )
    names = {"missing": "missing values", "cut": "values cut to a bound", "refusals": "refusals"}
    for key, name in names.items():
        rows = said[key]
        if rows or key != "cut":
            lines.append(f"{name}: {sum(one['times'] for one in rows) or 'none'}")
        what = "{what}: " if key == "missing" else ""
        lines += [f"  {{at}}  {{times}} x  {what}{{why}}".format(**one) for one in rows]
    return lines


@party.command(epilog="Example:  securefl party allow P --sessions 2")
@party_folder
@click.option("--sessions", type=int, required=True, help="Their number, those that were counted included.")
@click.option("--yes", is_flag=True, help="Agree without being asked.")
def allow(folder: Path, sessions: int, yes: bool) -> None:
    """Agree to a number of sessions without noise, over all studies of a stopped client.

    Within a session the server learns sums alone. But it could begin one with you and one without you, and
    subtract the sums: without noise the difference is close to your own update. So the party counts the
    sessions in which such a sum was ordered, and enters no more than you agree to.
    """
    from securefl.deployment import folder as folders
    from securefl.deployment.plan_file import require_sessions

    require_sessions(sessions)
    if not yes:
        _require_yes(
            f"The server can compare the sums without noise of {sessions} sessions over your records. Agree?",
            otherwise="Expected your agreement, got none: nothing was changed.",
        )
    content = folders.allow(folder, sessions)
    echo(f"{content.name}: {sessions} sessions without noise, over all studies.")
    echo(f"Next: securefl party serve {folder}")


@party.command(epilog="Example:  securefl party rotate P")
@party_folder
def rotate(folder: Path) -> None:
    """Make new keys for a stopped party, and print its new line of the roster. The old line is void.

    The old keys are deleted. The party takes part in no session until all parties have pinned a roster with
    the new line. It refuses sessions of the old roster. Its ledger continues.
    """
    from securefl.deployment import pinning

    more = ". Have the old line replaced by this one, and pin the new roster."
    _echo_line(pinning.rotate(folder).member(), more)


@party.command(epilog="Example:  securefl party recount P")
@party_folder
@click.option("--yes", is_flag=True, help="Say that the folder is the newest one, without being asked.")
def recount(folder: Path, yes: bool) -> None:
    """Make a lost counter again, from the state of the party's folder.

    Use it only if the counter is lost, the folder was never restored from a backup, and no copy of it serves
    elsewhere. A restored folder does not have the releases and sessions since the backup; only the counter
    shows that they exist. An existing counter is not changed.
    """
    from securefl.deployment import folder as folders

    if not yes:
        _require_yes(
            "Is this folder the newest and only one of the party, never restored from a backup?",
            otherwise="Expected your word that the folder is the newest, got none: nothing was changed.",
        )
    echo(f"The counter begins anew: {folders.recount(folder)}")
