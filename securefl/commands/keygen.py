"""The command `keygen`: makes the keys of a matching session."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Literal

import click

from securefl.commands.choices import FILE
from securefl.core.errors import ConfigError
from securefl.storage.inputs import shown


@click.command(epilog="Example:  securefl keygen --role key-holder --out K")
@click.option(
    "--role",
    type=click.Choice(["key-holder", "evaluator", "client"]),
    required=True,
    help="The keys' owner.",
)
@click.option("--out", type=FILE, required=True, help="A new folder.")
@click.option("--openings", default=1000, show_default=True, help="The most scores that the key opens.")
@click.option(
    "--params",
    type=click.Choice(["pads"]),
    help="pads makes no homomorphic key, for --params pads and pads-128. Default: keys for every --params.",
)
def keygen(role: str, out: Path, openings: int, params: Literal["pads"] | None) -> None:
    """Make the keys of one session: secrets that only their owner can read, and public files.

    key-holder: OUT/secret.key, OUT/public.key. evaluator: OUT/evaluator.key, OUT/evaluator.pub. client:
    OUT/client.key, OUT/client.pub, which --params strong and compact with a declared baseline need. Compare
    the fingerprints with the people you send the public files to. If the command fails, it leaves no file.

    --openings limits the number of scores, and sets the size of the flooding noise. It does not protect the
    key of an encrypted baseline from an evaluator that breaks the protocol: with a few hundred openings of
    forged requests, it reads the whole secret key. With a declared baseline, openings are checked: an
    evaluator alone does not get the key, and one that has a client's key does. Keys of --params pads have no
    such part, and no noise.
    """
    from securefl.matching import document
    from securefl.matching.clients import ClientKey
    from securefl.matching.evaluator import Evaluator
    from securefl.matching.key_holder import KeyHolder
    from securefl.storage.files import filling

    names = {
        "key-holder": ("secret.key", "public.key"),
        "evaluator": ("evaluator.key", "evaluator.pub"),
        "client": ("client.key", "client.pub"),
    }
    secret, public = names[role]
    if params is not None and role != "key-holder":
        raise click.UsageError(f"Expected --params for the role key-holder alone, got {role}. Leave it out.")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"Expected a folder or nothing at {shown(out)}, got a file. Choose another path.")
    # Both are checked before one is made: two halves of different pairs would not work together.
    for name in (secret, public):
        if os.path.lexists(out / name):
            raise ConfigError(
                f"Expected a folder without keys, got {shown(out / name)}, which exists. Choose another "
                "folder: keys are never overwritten."
            )
    if role == "key-holder":
        keys = KeyHolder.generate(openings=openings, parameters=params)
        files, fingerprint = (keys.to_document(), keys.public.to_document()), keys.public.fingerprint
    elif role == "client":
        client = ClientKey.generate()
        files, fingerprint = client.to_documents(), client.public.fingerprint
    else:
        evaluator = Evaluator.generate()
        files, fingerprint = evaluator.to_documents(), evaluator.public.fingerprint
    # The key's counts and ledger are created here later, so only the owner may write into the folder. If a
    # write fails, or the fingerprint cannot be told, half a pair would be left: all of it goes.
    with filling(out):
        document.write(out / secret, files[0], secret=True)
        document.write(out / public, files[1])
        click.echo(f"{shown(out / public)}: fingerprint {fingerprint}")
