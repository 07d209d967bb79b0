"""The command `match`: the evaluator matches encrypted profiles with a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securefl.commands.choices import (
    FILE,
    declared_options,
    require_free,
    tell_floored,
    with_declared,
)
from securefl.commands.exit_codes import ExitCode
from securefl.commands.printing import echo
from securefl.core.errors import DataError
from securefl.storage.inputs import shown

if TYPE_CHECKING:
    from securefl.matching.evaluator import Evaluator
    from securefl.matching.matched import Matched
    from securefl.matching.sealed import Sealed


@click.command(
    epilog="Example:  securefl match --public K/public.key --evaluator V/evaluator.key "
    "--baseline b.json p1.enc p2.enc -o scores.enc"
)
@click.option("--public", type=FILE, help="The key holder's public.key.")
@click.option("--evaluator", type=FILE, help="Your evaluator.key.")
@click.option("--baseline", type=FILE, help="JSON, or an encrypted .enc (mode E).")
@click.option("-o", "--out", type=FILE, required=True, help="The file to send to the key holder.")
@click.option(
    "--story",
    is_flag=True,
    help="Play all parties of a match here, and write to --out a page of what each holds and sees.",
)
@with_declared
@click.argument("profiles", type=FILE, nargs=-1)
def match(
    public: Path | None,
    evaluator: Path | None,
    baseline: Path | None,
    out: Path,
    story: bool,
    profiles: tuple[Path, ...],
    **chosen: Any,
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
    The command prints the label of each file's score, because a mailed file may be renamed.
    If --variant, --params, --anchor or bounds are given, a profile with other options is refused. Without
    them all profiles must have the same options.
    A file that cannot be read is refused by its name, like a damaged or foreign one; the others are scored.
    Exit code: 0 if every profile has a score, 3 if some are refused, 2 if all are. 1 if a key, the baseline
    or the output cannot be used: then no profile is scored.
    With --story there are no other parties: PROFILES and the baseline are plain JSON, keys are made for the
    page, and without files an example from packaged digits is played, under pads and under CKKS:
    securefl match --story -o story.html
    Trust: evaluator and key holder follow the protocol and do not collude; together they can read all
    profiles.
    Under --params strong-encrypted the baseline is encrypted, and openings are not checked: an evaluator that
    breaks the protocol reads the whole secret key within a few hundred openings; --openings limits the number
    of openings, and does not protect the key.
    Under --params strong and compact the baseline is declared (securefl declare), and openings are checked:
    clients sign their ciphertexts, and an evaluator alone has one score of each read. Together with one
    client it has any entry of a profile read, and digits of the key. The key holder learns the baseline.
    Under --params pads and pads-128 there is no such key. Each file is then matched with one baseline, ever:
    matched-<fingerprint>.sqlite beside your key has the record. Key holder and one client together learn the
    baseline. If you declare it before clients encrypt (securefl declare), it alone can be scored, and the
    key holder learns it.
    """
    if story:
        from securefl.commands.story import tell_story

        flags = (("--public", public), ("--evaluator", evaluator), ("--declared", chosen.pop("declared")))
        for flag, given in flags:
            if given is not None:
                raise click.UsageError(
                    f"Expected no {flag} with --story, which makes keys of its own. Leave it out."
                )
        tell_story(baseline, profiles, chosen, out)
        return
    public, evaluator = _given("--public", public), _given("--evaluator", evaluator)
    baseline = _given("--baseline", baseline)
    if not profiles:
        raise click.MissingParameter(param_hint="'PROFILES...'", param_type="argument")
    from securefl.matching import document
    from securefl.matching.admission import NothingLeft
    from securefl.matching.evaluator import Evaluator
    from securefl.matching.keys import PublicKeys
    from securefl.matching.profile_file import read_profile
    from securefl.matching.sealed import BASELINE, SCORES, Sealed

    require_free(out, SCORES, public, evaluator, baseline, *profiles)
    keys = document.load(public, PublicKeys)
    own = document.load(evaluator, Evaluator)
    # The content says what the file is, not its name, since a mailed file may be renamed.
    encrypted = document.is_document(baseline)
    base = Sealed.from_document(document.read(baseline, BASELINE)) if encrypted else read_profile(baseline)
    paths, sealed, refused = _sealed(profiles)
    options = declared_options(keys, own.public, own=None if isinstance(base, Sealed) else base, **chosen)
    with _record(evaluator, own, sealed) as matched:
        try:
            scores = own.match(keys, base, sealed, options=options, matched=matched)
        except NothingLeft as error:
            # Places of `error.refused` are among the readable files. `paths` maps them to those among all.
            _tell_refused(profiles, refused | {paths[one.place]: one.why for one in error.refused})
            echo(f"securefl: no profile is left to match; {shown(out)} is not written.", err=True)
            raise SystemExit(ExitCode.USAGE) from None
    document.write(out, scores.to_document())
    refused |= {paths[one.place]: one.why for one in scores.refused}
    # Scores are in the order of the remaining profiles, so labels and places correspond one to one.
    for place, label in zip((place for place in paths if place not in refused), scores.labels, strict=True):
        echo(f"{shown(profiles[place])} -> {label}")
    tell_floored(scores.floored)
    echo(f"{shown(out)}: {len(scores.labels)} scores for key holder {keys.fingerprint}")
    _tell_refused(profiles, refused)
    if refused:
        raise SystemExit(ExitCode.REFUSED)


def _given(flag: str, path: Path | None) -> Path:
    """The option's file. Raises MissingParameter, as click does, if it was not given."""
    if path is None:
        raise click.MissingParameter(param_hint=f"'{flag}'", param_type="option")
    return path


@contextmanager
def _record(key: Path, own: Evaluator, sealed: Sequence[Sealed]) -> Iterator[Matched | None]:
    """The record of matched profiles beside the evaluator's key. None if no profile is under pads."""
    from securefl.matching.matched import Matched
    from securefl.matching.options import WORD_BITS

    # A header may hold any value, such as a list.
    if not any(one.header.get("parameters") in tuple(WORD_BITS) for one in sealed):
        yield None
        return
    # Always 16 digits: under another name, profiles would be matched anew.
    with closing(Matched(key.parent / f"matched-{own.public.fingerprint[:16]}.sqlite")) as matched:
        yield matched


def _sealed(profiles: Sequence[Path]) -> tuple[list[int], list[Sealed], dict[int, str]]:
    """Places and contents of the readable files, and the reason for each other file by its place."""
    from securefl.matching import document
    from securefl.matching.sealed import PROFILE, Sealed

    places, sealed, refused = [], [], {}
    for place, path in enumerate(profiles):
        try:
            sealed.append(Sealed.from_document(document.read(path, PROFILE)))
            places.append(place)
        except DataError as error:
            # The path is removed here, because it is printed before the reason.
            refused[place] = str(error).removeprefix(f"{shown(path)}: ")
    return places, sealed, refused


def _tell_refused(profiles: Sequence[Path], refused: Mapping[int, str]) -> None:
    for place in sorted(refused):
        echo(f"securefl: {shown(profiles[place])} refused: {refused[place]}", err=True)
