"""Pins the roster that a party agreed to, checks it at each start, and rotates the party's keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError
from securefl.deployment import keys, plan_file
from securefl.deployment.plan_file import PlanFile
from securefl.deployment.roster import PinnedRoster, fingerprint, read
from securefl.storage.counter import Counter
from securefl.storage.files import write
from securefl.storage.folder_lock import locked

ROSTER = "roster.jsonl"


def rotate(folder: Path) -> Identity:
    """Make new keys. The roster's line for the old ones is void: the party serves no session until a roster
    with the new line is pinned.

    Raises ConfigError while the party runs.
    """
    with locked(folder):
        content = plan_file.read(folder)
        # Unpinned first: between the two writes the old roster would name keys that are gone.
        plan_file.write(folder, replace(content, roster=""))
        own = keys.make(folder, content.name)
        note_keys(content, own)
        return own


def note_keys(content: PlanFile, own: Identity) -> None:
    """Note a party's newest keys in its counter. A lost counter gets no note, and is refused anyway."""
    counter = Counter(Path(content.counter))
    if counter.there:
        counter.note_keys(fingerprint(own.member()))


def newest_keys(folder: Path, content: PlanFile) -> Identity:
    """The party's keys. Raises ConfigError as `keys.read`, and for keys of before a rotation."""
    own = keys.read(folder, content.name)
    noted, found = Counter(Path(content.counter)).keys(), fingerprint(own.member())
    if noted and noted != found:
        raise ConfigError(
            f"Expected the newest keys of {content.name}, {noted}, as its counter {content.counter} notes, "
            f"got {found}: {folder} is from a backup of before `securefl party rotate`, and its line of the "
            f"roster is void. Put the newest folder back. If it is lost: securefl party rotate {folder}, and "
            "have all parties pin the new line."
        )
    return own


def pin(folder: Path, pinned: PinnedRoster, text: str) -> PlanFile:
    """Pin a roster that was read from `text`. Raises ConfigError if it does not fit the study or the keys."""
    with locked(folder):
        content = plan_file.read(folder)
        _require_own(content, pinned, newest_keys(folder, content))
        if len(pinned.clients) != content.clients:
            raise ConfigError(
                f"Expected a roster of the study's {content.clients} clients, got {len(pinned.clients)}. Ask "
                "the missing clients for their lines."
            )
        write(folder / ROSTER, text, secret=True)
        content = replace(content, roster=pinned.digest.hex())
        plan_file.write(folder, content)
        return content


def _require_own(content: PlanFile, pinned: PinnedRoster, identity: Identity) -> None:
    own = identity.member()
    if pinned.members.get(content.name) != own:
        raise ConfigError(
            f"Expected {content.name} in the roster with its own keys, {fingerprint(own)}, "
            f"got {'other keys' if content.name in pinned.members else 'no line of it'}. Add the line that "
            "this prints: securefl party enrol."
        )


def pinned_of(folder: Path, content: PlanFile) -> tuple[PinnedRoster, Identity]:
    """The roster that the party pinned, and its keys.

    Raises ConfigError if no roster is pinned, or it was changed since, and as `newest_keys`.
    """
    if not content.roster:
        raise ConfigError(
            f"Expected a pinned roster, got none. Send the line of `securefl party enrol {folder}` to the "
            f"roster's maker, and pin the roster that comes back: securefl party pin {folder} ROSTER."
        )
    pinned = read(folder / ROSTER)
    if pinned.digest.hex() != content.roster:
        raise ConfigError(
            f"Expected the roster that was pinned, {content.roster[:16]}, got {pinned.digest.hex()[:16]}: "
            f"{folder / ROSTER} was changed since. Compare the fingerprints, and pin it again."
        )
    own = newest_keys(folder, content)
    _require_own(content, pinned, own)
    return pinned, own
