"""The commands `keygen`, `profile`, `encrypt`, `match` and `reveal`: a matching between files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from securefl.accounting.ledger import Ledger, Terms
from securefl.errors import ConfigError, DataError
from securefl.he.openings import Openings
from securefl.matching import document
from securefl.matching.admission import NothingLeft
from securefl.matching.choices import FILE, chosen_options, read_profile, with_options
from securefl.matching.document import shown
from securefl.matching.evaluator import KIND as EVALUATOR_KIND
from securefl.matching.evaluator import PUBLIC_KIND, Evaluator, EvaluatorPublic
from securefl.matching.key_holder import KIND as SECRET_KIND
from securefl.matching.key_holder import KeyHolder, Revealed
from securefl.matching.keys import KIND as PUBLIC_KEY_KIND
from securefl.matching.keys import PublicKeys
from securefl.matching.options import Options
from securefl.matching.sealed import BASELINE, PROFILE, SCORES, Scores, Sealed
from securefl.profiles import VARIANCE_FLOOR

OUT = click.Path(path_type=Path, dir_okay=False)


@click.command(epilog="Example:  securefl keygen --role key-holder --out K")
@click.option("--role", type=click.Choice(["key-holder", "evaluator"]), required=True, help="Whose keys.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="A new folder.")
@click.option("--openings", default=1000, show_default=True, help="Scores the key will open at most.")
def keygen(role: str, out: Path, openings: int) -> None:
    """Make the keys of one session: secrets that only their owner can read, and public files.

    key-holder: OUT/secret.key, OUT/public.key. evaluator: OUT/evaluator.key, OUT/evaluator.pub. Compare the
    fingerprints with the people you send the public files to.

    --openings limits how many scores are read, and noise is sized for it. It does not protect the key from an
    evaluator that breaks the protocol: a few hundred openings of its own making read the whole secret key.
    """
    secret, public = (
        ("secret.key", "public.key") if role == "key-holder" else ("evaluator.key", "evaluator.pub")
    )
    for name in (secret, public):
        if (out / name).exists():
            raise ConfigError(f"{out / name} exists; choose another folder: keys are never overwritten.")
    if role == "key-holder":
        keys = KeyHolder.generate(openings=openings)
        files, fingerprint = (keys.to_document(), keys.public.to_document()), keys.public.fingerprint
    else:
        evaluator = Evaluator.generate()
        files, fingerprint = evaluator.to_documents(), evaluator.public.fingerprint
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    document.write(out / secret, files[0], secret=True)
    document.write(out / public, files[1])
    click.echo(f"{out / public}: fingerprint {fingerprint}")


def _not_over(out: Path, *inputs: Path | None) -> None:
    """ConfigError where the output would take the place of an input."""
    if any(path is not None and out.resolve() == path.resolve() for path in inputs):
        raise ConfigError(f"{out} is an input too; write to another file with --out.")


@click.command(
    epilog="Example:  securefl encrypt --public K/public.key --evaluator V/evaluator.pub "
    "--profile p1.json -o p1.enc"
)
@click.option("--public", type=FILE, required=True, help="The key holder's public.key.")
@click.option("--evaluator", type=FILE, required=True, help="The evaluator's evaluator.pub.")
@click.option("--profile", type=FILE, help='A client\'s {"mean": [...], "variance": [...]}.')
@click.option("--baseline", type=FILE, help="The same of a baseline: mode E, the evaluator learns it not.")
@click.option("-o", "--out", type=OUT, required=True, help="The file to send to the evaluator.")
@with_options
def encrypt(
    public: Path, evaluator: Path, profile: Path | None, baseline: Path | None, out: Path, **chosen: Any
) -> None:
    """Encrypt a profile (or a baseline) to the key holder, and seal it to the evaluator.

    Clients and the baseline's owner give the same --variant, --params, --anchor and bounds. With
    --variant mean-only the variances reach the evaluator readable. Compare the fingerprints printed with
    those the key holder and the evaluator tell you.
    """
    if (profile is None) == (baseline is None):
        raise click.UsageError("Give either --profile or --baseline.")
    _not_over(out, public, evaluator, profile, baseline)
    keys = PublicKeys.from_document(document.read(public, PUBLIC_KEY_KIND))
    server = EvaluatorPublic.from_document(document.read(evaluator, PUBLIC_KIND))
    options = chosen_options(**chosen) or Options()
    if profile is not None:
        own = read_profile(profile)
        sealed = own.encrypt(keys, server, label=profile.stem, options=options)
    else:
        assert baseline is not None
        own = read_profile(baseline)
        sealed = own.encrypt_baseline(keys, server, label=baseline.stem, options=options)
    document.write(out, sealed.to_document())
    if sealed.clipped:
        click.echo(
            f"{sealed.clipped} values lay outside the bounds and were clipped; see --anchor.", err=True
        )
    _tell_floored(sealed.floored)
    bound = options.error_bound(len(own.plain), keys.openings)
    click.echo(f"{out}: for key holder {keys.fingerprint}, evaluator {server.fingerprint}")
    click.echo(f"all {keys.openings} scores of this key within {bound:.2g}, except with probability 1e-6")


def _tell_floored(count: int) -> None:
    if count:
        click.echo(f"{count} variances were below {VARIANCE_FLOOR:g} and count as that.", err=True)


@click.command(
    epilog="Example:  securefl match --public K/public.key --evaluator V/evaluator.key "
    "--baseline b.json p1.enc p2.enc -o scores.enc"
)
@click.option("--public", type=FILE, required=True, help="The key holder's public.key.")
@click.option("--evaluator", type=FILE, required=True, help="Your evaluator.key.")
@click.option("--baseline", type=FILE, required=True, help="JSON you may read, or .enc that you may not.")
@click.option("-o", "--out", type=OUT, required=True, help="The file to send to the key holder.")
@with_options
@click.argument("profiles", type=FILE, nargs=-1, required=True)
def match(
    public: Path, evaluator: Path, baseline: Path, out: Path, profiles: tuple[Path, ...], **chosen: Any
) -> None:
    """Match encrypted PROFILES with a baseline; the key holder reads the scores, you learn none.

    \b
    1  key holder  securefl keygen --role key-holder --out K    gives K/public.key to all
    2  evaluator   securefl keygen --role evaluator --out V     gives V/evaluator.pub to all
    3  client      securefl profile --data d.npy --model m.toml -o p1.json    (or its own JSON)
    4  client      securefl encrypt --public K/public.key --evaluator V/evaluator.pub
    \b                 --profile p1.json -o p1.enc                 sends p1.enc to the evaluator
    5  evaluator   securefl match ... --baseline b.json p1.enc p2.enc -o scores.enc
    \b                 or, where the baseline is secret too, its owner encrypts it to b.enc (mode E)
    6  key holder  securefl reveal --secret K/secret.key --evaluator V/evaluator.pub scores.enc
    A score is the mean KL divergence from the baseline: 0 for the same profile, larger for others.
    Printed is which file's score is listed under which label; a mailed file may be renamed.
    --variant, --params, --anchor and bounds are what profiles must have been encrypted with. Without any
    of them all profiles must agree.
    Exit code: 0 where every profile is among the scores, 3 where some are refused, 2 where none is left.
    Trust: evaluator and key holder follow the protocol and do not collude; together they read all.
    An evaluator that breaks the protocol reads the whole secret key within a few hundred openings;
    --openings limits how much is opened, and does not protect the key.
    """
    _not_over(out, public, evaluator, baseline, *profiles)
    keys = PublicKeys.from_document(document.read(public, PUBLIC_KEY_KIND))
    own = Evaluator.from_document(document.read(evaluator, EVALUATOR_KIND))
    with baseline.open("rb") as start:
        encrypted = start.read(9) == b"securefl "
    base = Sealed.from_document(document.read(baseline, BASELINE)) if encrypted else read_profile(baseline)
    paths, sealed, refused = _sealed(profiles)
    try:
        scores = own.match(keys, base, sealed, options=chosen_options(**chosen))
    except NothingLeft as error:
        _tell_refused(profiles, refused | {paths[one.place]: one.why for one in error.refused})
        click.echo(f"securefl: no profile is left to match; {shown(out)} is not written.", err=True)
        raise SystemExit(2) from None
    document.write(out, scores.to_document())
    refused |= {paths[one.place]: one.why for one in scores.refused}
    for place, label in zip((place for place in paths if place not in refused), scores.labels, strict=True):
        click.echo(f"{shown(profiles[place])} -> {label}")
    _tell_floored(scores.floored)
    click.echo(f"{out}: {len(scores.labels)} scores for key holder {keys.fingerprint}")
    _tell_refused(profiles, refused)
    if refused:
        raise SystemExit(3)


def _sealed(profiles: Sequence[Path]) -> tuple[list[int], list[Sealed], dict[int, str]]:
    """Places and contents of the files that can be read, and why the others cannot, by place."""
    places, sealed, refused = [], [], {}
    for place, path in enumerate(profiles):
        try:
            sealed.append(Sealed.from_document(document.read(path, PROFILE)))
            places.append(place)
        except DataError as error:
            refused[place] = str(error).removeprefix(f"{shown(path)}: ")
    return places, sealed, refused


def _tell_refused(profiles: Sequence[Path], refused: Mapping[int, str]) -> None:
    for place in sorted(refused):
        click.echo(f"securefl: {shown(profiles[place])} refused: {refused[place]}", err=True)


@click.command(
    epilog="Example:  securefl reveal --secret K/secret.key --evaluator V/evaluator.pub scores.enc --json"
)
@click.option("--secret", type=FILE, required=True, help="Your secret.key.")
@click.option("--evaluator", type=FILE, required=True, help="The evaluator's evaluator.pub.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
@click.argument("scores", type=FILE)
def reveal(secret: Path, evaluator: Path, as_json: bool, scores: Path) -> None:
    """Read the SCORES that the evaluator signed, by the names of the profiles' files.

    Beside the secret key stand openings-<fingerprint>.sqlite, which counts what was opened (a key opens a
    declared number of scores, and the same file again is no second opening), and ledger.sqlite, the
    releases. A score is that of the profile as its client clipped it to the bounds. Ends with exit code 1
    where a score was refused.

    The evaluator must follow the protocol: requests of its own making read the whole secret key within a few
    hundred openings, and with it every profile. The declared number limits volume, not that.
    """
    keys = KeyHolder.from_document(document.read(secret, SECRET_KIND))
    server = EvaluatorPublic.from_document(document.read(evaluator, PUBLIC_KIND))
    signed = Scores.from_document(document.read(scores, SCORES))
    terms = Terms(unit="record", adjacency="replace-one", delta=1e-5)
    home, session = secret.parent, bytes.fromhex(keys.public.session)
    # by 16 digits: under a new name, a key's openings would be counted anew
    counted = home / f"openings-{keys.public.session[:16]}.sqlite"
    with (
        Ledger(home / "ledger.sqlite", terms) as ledger,
        closing(Openings(counted)) as openings,
    ):
        openings.bind(ledger.identity)
        released = sum(row[7] == "committed" and row[1] == session for row in ledger.rows())
        if openings.opened < released:
            raise DataError(
                f"{counted} counts {openings.opened} openings, the ledger beside it {released} releases: the "
                "count is lost. Make new keys."
            )
        found = keys.reveal(signed, server, openings=openings, ledger=ledger)
    _tell(found, as_json)


def _tell(found: Revealed, as_json: bool) -> None:
    if as_json:
        shown: dict[str, Any] = {"scores": found.scores, "error_bound": found.error_bound}
        if found.refused:
            shown["refused"] = found.refused
        click.echo(json.dumps(shown, indent=2))
    else:
        for label, score in found.scores.items():
            click.echo(f"{label}  {score:.6g}")
        click.echo(f"all within {found.error_bound:.2g}, except with probability 1e-6")
    for label, why in found.refused.items():
        click.echo(f"securefl: {label} refused: {why}", err=True)
    if found.refused:
        raise SystemExit(1)
