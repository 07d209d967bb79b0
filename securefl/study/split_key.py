"""The secret key that splits a study's records into training and test parts, and its file.

A run and a sweep keep the key in their private folder, a party keeps it in its own folder.

A record's side is the part that it belongs to: training or test. If a finite epsilon is claimed, only the
holder of the records knows the side of each record. The key is drawn once and kept: under another key, a
resumed run would train on records that it has tested on. All arms and seeds share one key. So a record that
is in the server's test part under one seed is in it under all seeds.

If no epsilon is claimed, the splits follow from the public seed, so a study can be repeated. So they do in a
sweep if none of its cells claims one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securefl.core.entropy import fingerprint
from securefl.core.errors import ConfigError, DataError
from securefl.core.formats import first_line, prefix
from securefl.core.keys import SecretKey
from securefl.data.sides import KEY_BYTES, Sides
from securefl.storage import owned
from securefl.storage.files import folder_at, write
from securefl.storage.private_folder import NOTICE, PRIVATE, private_folder
from securefl.study.config import Study

NAME: Final = "split.key"
_KIND: Final = "split"
_VERSION: Final = prefix("split").decode()
DEALT: Final = "split.txt"
"""The file that marks a run whose test part follows from the seed. A deployment's server, which has no key,
writes it into its private folder."""


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The rules that put a record on the training side or the test side.

    test: decides which records become the server's test part. holdout: decides which of its own records a
    client tests on. choosing: decides which test records are for choosing settings. Without a key it is the
    same under all seeds: a record that chose a setting under one seed must not measure it under another.
    bound: the version of the rule, with a fingerprint of the key if there is one. A run's files note it, and
    refuse another one. It is empty if no record is split by content, and for a study that is only inspected.
    """

    test: Sides
    holdout: Sides
    choosing: Sides
    bound: str = ""


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """The source of a study's splits: a secret key, or the public seed.

    key: the record holder's own. None if no epsilon is claimed, except in a sweep that claims one elsewhere,
        and for a study that is only inspected.
    dealt: whether parties on several machines each load and deal the records. All of them need the same test
        part, so it follows from the seed.
    """

    key: SecretKey | None = None
    dealt: bool = False

    def splits(self, study: Study, seed: int) -> Splits:
        """The splits under a seed. They follow from the key if there is one, or else from the seed if no
        epsilon is claimed."""
        public, version = Sides(seed), _VERSION if _by_content(study) else ""
        if not study.claims and self.key is None:
            return Splits(test=public, holdout=public, choosing=Sides(0), bound=version)
        if self.key is not None:
            own, bound = Sides(self.key), fingerprint(self.key, _VERSION.encode(), b"").hex()
        elif self.dealt:  # a deployment's server holds no records
            own, bound = public, version
        else:  # an inspection keeps no results, so no key
            own, bound = Sides.fresh(), ""
        # A packaged data set is published, so its test part needs no secret.
        published = self.dealt or study.packaged
        return Splits(
            test=public if published else own,
            holdout=own,
            choosing=Sides(0) if published else own,
            bound=bound,
        )

    def keep(self, folder: Path) -> None:
        """Write the key into a new run folder. Raises ConfigError if the folder has another key."""
        if self.dealt:
            write(
                private_folder(folder) / DEALT,
                f"{NOTICE}\nThe test part of this run follows from its seed.\n",
            )
        elif self.key is not None:
            write_new(private_folder(folder), self.key)


def needed(study: Study) -> bool:
    """Whether a split of this study uses a secret key: it claims an epsilon and sets records apart."""
    return study.claims and _by_content(study)


def _by_content(study: Study) -> bool:
    section = study.data
    return section.holdout > 0 or section.validation > 0 or study.shares


def fresh() -> SecretKey:
    return SecretKey(os.urandom(KEY_BYTES))


def write_new(folder: Path, key: SecretKey) -> None:
    """Write a key into a folder that has none. Raises ConfigError if the folder has another key."""
    if (folder / NAME).exists():
        if read(folder) != key:
            raise ConfigError(
                f"Expected no key of the splits in {folder}, got one: another process began a run there "
                "meanwhile. Run the same command again: it continues that run."
            )
        return
    write(folder / NAME, first_line(_KIND) + key.reveal(), secret=True)


def read(folder: Path) -> SecretKey:
    """The key in a folder. Raises DataError if it is missing, damaged, or readable by other users."""
    path = folder / NAME
    raw = owned.secret(
        path,
        KEY_BYTES,
        lost="under another key of the splits, the run would train on records that it has tested on. Put the "
        "file back, or begin a new run in another folder.",
        seen="other users may have learnt which records are tested on. If you know that none did: "
        f"chmod 600 {path}",
        error=DataError,
        kind=_KIND,
        anew="begin a new run in another folder",
    )
    return SecretKey(raw)


def of_run(study: Study, folder: Path, began: bool) -> Keeper:
    """The keeper of the run in a folder. A new run gets a fresh key, if it needs one.

    began: whether the folder has a run already. Its key is then read, and no new one is drawn.
    Raises DataError if that key is lost.
    """
    private = folder / PRIVATE
    if (private / DEALT).exists():
        return Keeper(dealt=True)
    if (private / NAME).exists() or (began and needed(study)):
        return Keeper(key=read(private))
    return Keeper(key=fresh() if needed(study) else None)


def share(out: Path, study: Study, folder: Path, begun: bool) -> None:
    """Write the key of the sweep in `out`, if a study of it claims an epsilon, into a new run's folder.

    All its runs share it. If each had its own key, one would train on test records of another. A run without
    noise has it too: else it would be tested on other records than the runs beside it.
    begun: whether a run of the sweep has begun. The sweep's key is then read, and no new one is drawn.
    Raises DataError if that key is lost.
    """
    own, shared = folder / PRIVATE, out / PRIVATE
    if not begun and not (shared / NAME).exists():
        write_new(private_folder(out), fresh())
    if _by_content(study) and not (own / NAME).exists():
        key = read(shared)
        folder_at(folder)
        write_new(private_folder(folder), key)
