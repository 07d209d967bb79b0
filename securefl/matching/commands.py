"""The commands `keygen`, `profile`, `encrypt`, `match` and `reveal`: a matching between files."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import numpy as np

from securefl.accounting.ledger import Ledger, Terms
from securefl.errors import ConfigError, DataError
from securefl.he.openings import Openings
from securefl.matching import envelope
from securefl.matching.evaluator import KIND as EVALUATOR_KIND
from securefl.matching.evaluator import PUBLIC_KIND, Evaluator, EvaluatorPublic
from securefl.matching.key_holder import KIND as SECRET_KIND
from securefl.matching.key_holder import KeyHolder, Revealed
from securefl.matching.keys import KIND as PUBLIC_KEY_KIND
from securefl.matching.keys import PublicKeys
from securefl.matching.options import Options, Word, default_bounds
from securefl.matching.sealed import BASELINE, PROFILE, SCORES, Profile, Scores, Sealed
from securefl.profiles import Anchor, Bounds, Variant

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
OUT = click.Path(path_type=Path, dir_okay=False)
LARGEST_PROFILE = 2**24


@click.command(epilog="Example:  securefl keygen --role key-holder --out K")
@click.option("--role", type=click.Choice(["key-holder", "evaluator"]), required=True, help="Whose keys.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="A new folder.")
@click.option("--openings", default=1000, show_default=True, help="Scores the key holder will open at most.")
def keygen(role: str, out: Path, openings: int) -> None:
    """Make the keys of one session: secrets that only their owner can read, and public files.

    key-holder: OUT/secret.key, OUT/public.key. evaluator: OUT/evaluator.key, OUT/evaluator.pub. Compare the
    fingerprints with the people you send the public files to.
    """
    secret, public = (
        ("secret.key", "public.key") if role == "key-holder" else ("evaluator.key", "evaluator.pub")
    )
    for name in (secret, public):
        if (out / name).exists():
            raise ConfigError(f"{out / name} exists; choose another folder: keys are never overwritten.")
    if role == "key-holder":
        keys = KeyHolder.generate(openings=openings)
        files, fingerprint = (keys.to_envelope(), keys.public.to_envelope()), keys.public.fingerprint
    else:
        evaluator = Evaluator.generate()
        files, fingerprint = evaluator.to_envelopes(), evaluator.public.fingerprint
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    envelope.write(out / secret, files[0], secret=True)
    envelope.write(out / public, files[1])
    click.echo(f"{out / public}: fingerprint {fingerprint}")


def _not_over(out: Path, *inputs: Path | None) -> None:
    """ConfigError where the output would take the place of an input."""
    if any(path is not None and out.resolve() == path.resolve() for path in inputs):
        raise ConfigError(f"{out} is an input too; write to another file with --out.")


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    """The options that clients and the baseline's owner must choose alike."""
    for option in (
        click.option("--weight-bound", type=float, help="Largest root mean square weight of a baseline."),
        click.option("--variance-high", type=float, help="Largest anchored variance; larger is clipped."),
        click.option("--variance-low", type=float, help="Smallest anchored variance."),
        click.option("--mean-bound", type=float, help="Largest anchored |mean|; larger is clipped."),
        click.option("--anchor", type=FILE, help="Public profile (JSON) that values are standardised by."),
        click.option(
            "--params", type=click.Choice(["strong", "compact"]), default="strong", show_default=True
        ),
        click.option(
            "--variant",
            type=click.Choice([variant.value for variant in Variant]),
            default=Variant.FULL.value,
            show_default=True,
            help="mean-only leaves the variances readable by the evaluator.",
        ),
    ):
        command = option(command)
    return command


def _options(variant: str, params: Word, anchor: Path | None, **bounds: float | None) -> Options:
    default = default_bounds(params)
    names = {"mean_bound": "mean", "weight_bound": "weight"}
    chosen = {names.get(name, name): value for name, value in bounds.items() if value is not None}
    declared = Bounds(**{**vars(default), **chosen})
    public = None if anchor is None else Anchor.of(_profile(anchor).plain)
    return Options(variant=Variant(variant), parameters=params, bounds=declared, anchor=public)


@click.command(
    epilog="Example:  securefl encrypt --public K/public.key --evaluator V/evaluator.pub "
    "--profile p1.json -o p1.enc"
)
@click.option("--public", type=FILE, required=True, help="The key holder's public.key.")
@click.option("--evaluator", type=FILE, required=True, help="The evaluator's evaluator.pub.")
@click.option("--profile", type=FILE, help='A client\'s {"mean": [...], "variance": [...]}.')
@click.option("--baseline", type=FILE, help="The same of a baseline: mode E, the evaluator learns it not.")
@click.option("-o", "--out", type=OUT, required=True, help="The file to send to the evaluator.")
@_shared
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
    keys = PublicKeys.from_envelope(envelope.read(public, PUBLIC_KEY_KIND))
    server = EvaluatorPublic.from_envelope(envelope.read(evaluator, PUBLIC_KIND))
    options = _options(**chosen)
    if profile is not None:
        own = _profile(profile)
        clipped = options.features(own.plain).clipped
        sealed = own.encrypt(keys, server, label=profile.stem, options=options)
        if clipped:
            click.echo(f"{clipped} values lay outside the bounds and were clipped; see --anchor.", err=True)
    else:
        assert baseline is not None
        sealed = _profile(baseline).encrypt_baseline(keys, server, label=baseline.stem, options=options)
    envelope.write(out, sealed.to_envelope())
    click.echo(f"{out}: for key holder {keys.fingerprint}, evaluator {server.fingerprint}")


@click.command(
    epilog="Example:  securefl match --public K/public.key --evaluator V/evaluator.key "
    "--baseline b.json p1.enc p2.enc -o scores.enc"
)
@click.option("--public", type=FILE, required=True, help="The key holder's public.key.")
@click.option("--evaluator", type=FILE, required=True, help="Your evaluator.key.")
@click.option("--baseline", type=FILE, required=True, help="JSON you may read, or .enc that you may not.")
@click.option("-o", "--out", type=OUT, required=True, help="The file to send to the key holder.")
@click.argument("profiles", type=FILE, nargs=-1, required=True)
def match(public: Path, evaluator: Path, baseline: Path, out: Path, profiles: tuple[Path, ...]) -> None:
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
    Trust: evaluator and key holder follow the protocol and do not collude; together they read all.
    """
    _not_over(out, public, evaluator, baseline, *profiles)
    keys = PublicKeys.from_envelope(envelope.read(public, PUBLIC_KEY_KIND))
    own = Evaluator.from_envelope(envelope.read(evaluator, EVALUATOR_KIND))
    sealed = [Sealed.from_envelope(envelope.read(path, PROFILE)) for path in profiles]
    with baseline.open("rb") as start:
        encrypted = start.read(9) == b"securefl "
    base = Sealed.from_envelope(envelope.read(baseline, BASELINE)) if encrypted else _profile(baseline)
    scores = own.match(keys, base, sealed)
    envelope.write(out, scores.to_envelope())
    click.echo(f"{out}: {len(sealed)} scores for key holder {keys.fingerprint}")


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
    """
    keys = KeyHolder.from_envelope(envelope.read(secret, SECRET_KIND))
    server = EvaluatorPublic.from_envelope(envelope.read(evaluator, PUBLIC_KIND))
    signed = Scores.from_envelope(envelope.read(scores, SCORES))
    terms = Terms(unit="record", adjacency="replace-one", delta=1e-5)
    home, session = secret.parent, bytes.fromhex(keys.public.session)
    # by 16 digits: under a new name, a key's openings would be counted anew
    counted = home / f"openings-{keys.public.session[:16]}.sqlite"
    for path in (counted, home / "ledger.sqlite"):
        path.touch(mode=0o600)
    with (
        Ledger(home / "ledger.sqlite", terms) as ledger,
        closing(Openings(counted)) as openings,
    ):
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


def _profile(path: Path) -> Profile:
    """A profile in JSON. Raises DataError, naming the path, for anything else."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_PROFILE:
            raise DataError(f"Expected a file of at most {LARGEST_PROFILE:,} bytes.")
        found = json.loads(path.read_text(encoding="utf-8"))
        if any(type(v) not in (int, float) for name in ("mean", "variance") for v in found[name]):
            raise ValueError
        mean, variance = (np.array(found[name], dtype=np.float64) for name in ("mean", "variance"))
        count = found.get("count", 1)
        if type(count) is not int:
            raise ValueError
        profile = Profile(mean, variance, count)
        _ = profile.plain
        return profile
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise DataError(
            f'{path}: Expected JSON like {{"mean": [0.1, 0.2], "variance": [1.0, 0.5]}}, of equal lengths.'
        ) from None
