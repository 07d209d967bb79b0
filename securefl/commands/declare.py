"""The command `declare`: the evaluator declares its baseline before clients encrypt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from securefl.commands.choices import FILE, chosen_options, require_free, tell_floored, with_options
from securefl.commands.printing import echo
from securefl.storage.inputs import shown


@click.command(
    epilog="Example:  securefl declare --public K/public.key --evaluator V/evaluator.key --baseline b.json "
    "--params pads -o declared.pub"
)
@click.option("--public", type=FILE, required=True, help="The key holder's public.key.")
@click.option("--evaluator", type=FILE, required=True, help="Your evaluator.key.")
@click.option("--baseline", type=FILE, required=True, help='Your {"mean": [...], "variance": [...]}.')
@click.option("-o", "--out", type=FILE, required=True, help="The file to send to all clients.")
@with_options
def declare(public: Path, evaluator: Path, baseline: Path, out: Path, **chosen: Any) -> None:
    """Declare a baseline before clients encrypt; their profiles are then scored with it or not at all.

    OUT has a digest of the baseline, and all options. Clients give it to securefl encrypt as --declared.
    It says nothing of the baseline to clients. The key holder learns the baseline with the scores, and
    refuses the weights of no baseline. Under --params pads and pads-128 without a declaration it does not
    learn it, and an evaluator that breaks the protocol can have it read one entry of a profile in place of a
    score. Under --params strong and compact a declaration is what openings are checked against. Clients then
    sign with a key (securefl keygen --role client), and the key holder has their client.pub.
    """
    from securefl.matching import document
    from securefl.matching.declared import Declaration
    from securefl.matching.evaluator import Evaluator
    from securefl.matching.keys import PublicKeys
    from securefl.matching.options import Options
    from securefl.matching.profile_file import read_profile

    require_free(out, Declaration.KIND, public, evaluator, baseline)
    keys = document.load(public, PublicKeys)
    own = document.load(evaluator, Evaluator)
    base = read_profile(baseline)
    options = chosen_options(base, **chosen) or Options()
    declaration = own.declare(keys, base, options=options)
    document.write(out, declaration.to_document())
    tell_floored(options.query(base).floored)
    echo(f"{shown(out)}: for key holder {keys.fingerprint}, evaluator {own.public.fingerprint}")
