"""The command `encrypt`: encrypts a profile or a baseline for a matching."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from securefl.commands.choices import (
    FILE,
    FOR_YOU_ALONE,
    declared_options,
    require_free,
    tell_declared,
    tell_floored,
    tell_refused_baseline,
    with_declared,
    within,
)
from securefl.commands.printing import echo
from securefl.storage.inputs import shown


@click.command(
    epilog="Example:  securefl encrypt --public K/public.key --evaluator V/evaluator.pub "
    "--profile p1.json -o p1.enc"
)
@click.option("--public", type=FILE, required=True, help="The key holder's public.key.")
@click.option("--evaluator", type=FILE, required=True, help="The evaluator's evaluator.pub.")
@click.option("--profile", type=FILE, help='A client\'s {"mean": [...], "variance": [...]}.')
@click.option(
    "--baseline", type=FILE, help="The same for a baseline (mode E). The evaluator does not learn it."
)
@click.option("--key", type=FILE, help="Your client.key, which --params strong and compact need.")
@click.option("-o", "--out", type=FILE, required=True, help="The file to send to the evaluator.")
@with_declared
def encrypt(
    public: Path,
    evaluator: Path,
    profile: Path | None,
    baseline: Path | None,
    key: Path | None,
    out: Path,
    **chosen: Any,
) -> None:
    """Encrypt a profile (or a baseline) to the key holder, and seal it to the evaluator.

    The name of the profile's file, without its ending, is the label of its score: each client needs another.
    All clients and the baseline's owner must give the same --variant, --params, --anchor and bounds. With
    --variant mean-only the evaluator can read the variances. Under --params pads or pads-128 a file is
    scored once: for another baseline, encrypt the profile again. With --declared it is scored with the
    declared baseline or not at all; --params strong and compact need it, and you then sign with --key.
    The evaluator chose what the declaration says: a spread above 8 is refused unless you give --spread.
    Under --params strong-encrypted the baseline is encrypted, and no opening is checked: an evaluator that
    breaks the protocol can read the key holder's key. Compare the printed fingerprints with those that the
    key holder and the evaluator tell you.

    What `match` would refuse is refused here: bounds that scores do not fit, a profile of another length or
    model than anchor and declaration, a file that is too long. The message names the flag and a value that
    fits. If a baseline like this profile would be refused, the command says so.
    """
    from securefl.matching import document
    from securefl.matching.clients import ClientKey
    from securefl.matching.keys import EvaluatorPublic, PublicKeys
    from securefl.matching.options import Options
    from securefl.matching.profile_file import read_profile
    from securefl.matching.sealed import BASELINE, PROFILE

    if (profile is None) == (baseline is None):
        raise click.UsageError("Expected --profile or --baseline, got both or neither. Give one.")
    # Checked before any work, because an output in the place of a key or a profile would destroy it.
    require_free(out, BASELINE if profile is None else PROFILE, public, evaluator, profile, baseline, key)
    keys = document.load(public, PublicKeys)
    server = document.load(evaluator, EvaluatorPublic)
    path = profile or baseline
    assert path is not None
    own = read_profile(path)
    options = declared_options(keys, server, own=own, **chosen) or Options()
    if profile is not None:
        signer = None
        if key is not None:
            if not options.checked:
                raise click.UsageError(
                    "Expected --key under --params strong or compact alone, which sign. Leave it out."
                )
            signer = document.load(key, ClientKey)
        sealed = own.encrypt(keys, server, label=path.stem, options=options, own=signer)
    else:
        sealed = own.encrypt_baseline(keys, server, label=path.stem, options=options)
    document.write(out, sealed.to_document())
    # These counts depend on the client's data. They are for the client alone, and not in the file.
    if sealed.clipped:
        echo(
            f"{sealed.clipped} values lay outside the bounds and were clipped. {FOR_YOU_ALONE} "
            f"{options.way_on(own)}",
            err=True,
        )
    tell_floored(sealed.floored)
    length = len(own)
    bound, most = options.error_bound(length, keys.openings), options.most_at_once(length, keys.openings)
    echo(f"{shown(out)}: for key holder {keys.fingerprint}, evaluator {server.fingerprint}")
    echo(f"all {keys.openings} scores of this key {within(bound, options.parameters)}")
    echo(f"one match takes at most {most} such profiles")
    if options.declared is not None:
        tell_declared(options)
    elif profile is not None:
        tell_refused_baseline(own, options)
