"""The key by which a study's records are split, in a file of whoever holds them.

A run and a sweep keep it in their private folder, and a party in its own folder.

Where a finite epsilon is claimed, nobody but the holder knows on which side a record is. The key is drawn
once and kept: a run that went on under another one would train on records that it tested on. It is one key
for all arms and seeds, so that the records which became the server's under one seed are so under all others.

Without a claim the splits follow from the public seed, so that a study repeats.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securefl.core.entropy import fingerprint
from securefl.core.errors import ConfigError, DataError
from securefl.core.keys import SecretKey
from securefl.data.sides import KEY_BYTES, Sides
from securefl.storage.files import write
from securefl.storage.private_folder import NOTICE, PRIVATE, private_folder
from securefl.study.config import Study

NAME: Final = "split.key"
DEALT: Final = "split.txt"
"""In the private folder of a deployment's server, which has no key."""


@dataclass(frozen=True, kw_only=True)
class Splits:
    """What says on which side a record falls.

    test: of the server's test part. holdout: of each client's. bound: a fingerprint of the key, for the run's
    own files; empty without one.
    """

    test: Sides
    holdout: Sides
    bound: str = ""


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """Who splits the records of a study.

    key: the holder's own. None where nothing is claimed, and for whoever only looks at a study.
    dealt: whether parties on machines of their own each load the records and deal them out. All of them must
        have one test part, so it follows from the seed.
    """

    key: SecretKey | None = None
    dealt: bool = False

    def splits(self, study: Study, seed: int) -> Splits:
        """The splits under a seed of the study, which they follow from where nothing is claimed."""
        public = Sides(seed)
        if not study.claims:
            return Splits(test=public, holdout=public)
        if self.key is not None:
            own, bound = Sides(self.key), fingerprint(self.key, b"securefl split v1", b"").hex()
        else:  # the server of a deployment holds no records, and whoever looks keeps nothing
            own, bound = (public if self.dealt else Sides.fresh()), ""
        # A published data set has no secret, and its parts are dealt before anything is claimed.
        test = public if self.dealt or study.packaged else own
        return Splits(test=test, holdout=own, bound=bound)

    def keep(self, folder: Path) -> None:
        """Keep it in a run folder that is new. Raises ConfigError if another one is there."""
        if self.dealt:
            write(
                private_folder(folder) / DEALT,
                f"{NOTICE}\nThe test part of this run follows from its seed.\n",
            )
        elif self.key is not None:
            write_new(private_folder(folder), self.key)


def needed(study: Study) -> bool:
    """Whether a split of this study goes by a key."""
    return study.claims and (study.data.holdout > 0 or study.shares)


def fresh() -> SecretKey:
    return SecretKey(os.urandom(KEY_BYTES))


def write_new(folder: Path, key: SecretKey) -> None:
    """Keep a key in a folder that has none. Raises ConfigError if another one is there."""
    if (folder / NAME).exists():
        if read(folder) != key:
            raise ConfigError(
                f"Expected {folder} without a key of its splits, got one: another process began there "
                "meanwhile. Run the same command again, and it goes on."
            )
        return
    write(folder / NAME, key.reveal(), secret=True)


def read(folder: Path) -> SecretKey:
    """The key in a folder. Raises DataError for one that is lost or damaged, and for one open to others."""
    path = folder / NAME
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise DataError(
            f"Expected the key of the splits in {path}, got {error.strerror}: under another key, records "
            "that were tested on would be trained on. Put the file back, or begin anew in another folder."
        ) from None
    with os.fdopen(file, "rb") as source:
        mode = os.fstat(source.fileno()).st_mode & 0o777
        raw = source.read(KEY_BYTES + 1)
    if mode & 0o077:
        raise DataError(
            f"Expected {path} for its owner alone, got mode {mode:04o}: others may have read on which side "
            f"each record is. If nobody did: chmod 600 {path}"
        )
    if len(raw) != KEY_BYTES:
        raise DataError(f"Expected {KEY_BYTES} bytes in {path}, got {len(raw)} or more. Put the file back.")
    return SecretKey(raw)


def of_run(study: Study, folder: Path, began: bool) -> Keeper:
    """Who splits the records of the run in a folder. A new run has a fresh key, where one is needed.

    began: whether there is a run in the folder. Its key is never drawn anew.
    """
    private = folder / PRIVATE
    if (private / DEALT).exists():
        return Keeper(dealt=True)
    if not needed(study):
        return Keeper()
    return Keeper(key=read(private) if began or (private / NAME).exists() else fresh())


def share(out: Path, study: Study, folder: Path, begun: bool) -> None:
    """Give a new run's folder the key that splits the records in all runs of a sweep in `out`.

    Under a key for each run, records of one run's test part would be trained on in another.
    begun: whether a run of the sweep has begun. Its key is then never drawn anew.
    Raises DataError if it is lost.
    """
    own, shared = folder / PRIVATE, out / PRIVATE
    if not needed(study) or (own / NAME).exists():
        return
    if not begun and not (shared / NAME).exists():
        write_new(private_folder(out), fresh())
    key = read(shared)
    folder.mkdir(parents=True, exist_ok=True)
    write_new(private_folder(folder), key)
