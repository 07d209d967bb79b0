"""The story of one encrypted match (`match --story`), of given profiles or of an example from digits."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securefl.commands.choices import chosen_options
from securefl.core.errors import ConfigError
from securefl.storage.inputs import shown

if TYPE_CHECKING:
    from securefl.matching.sealed import Profile

_RECORDS = 200
"""The records of each client of the example."""
_GREYS = 16
"""The grey levels of scikit-learn's digits, which the package scales to 1."""
_SEED = 0


def tell_story(baseline: Path | None, profiles: Sequence[Path], chosen: Mapping[str, Any], out: Path) -> None:
    """Play a match of plain profiles, and write its page.

    baseline, profiles: JSON files; without both, three clients of the packaged digits. chosen: the flags of
    the matching; without --variant both are played, and without any flag CKKS too. Raises ConfigError for one
    of the two without the other, and for an output that is no page.
    """
    from securefl.accounting.figures import counted
    from securefl.matching import story_page
    from securefl.matching.options import FLAGS, Options
    from securefl.matching.profile_file import read_profile
    from securefl.matching.profiles import Variant
    from securefl.matching.story import played
    from securefl.report.pages import require_page
    from securefl.storage.files import write

    if (baseline is None) != (not profiles):
        raise ConfigError(
            "Expected --baseline and PROFILES for a story of your own, or neither for the example, got one "
            "of the two. Example: securefl match --story --baseline b.json p1.json p2.json -o story.html"
        )
    require_page(out)
    if baseline is None:
        own, base = example()
        about = (
            f"Three clients hold {_RECORDS} digits each: as they are, with white and black dots, and "
            "blurred. The evaluator's baseline is of digits as they are."
        )
    else:
        own, base = {path.stem: read_profile(path) for path in profiles}, read_profile(baseline)
        about = f"{counted(len(own), 'profile')} and the baseline come from files."
        if len(own) < len(profiles):
            raise ConfigError(
                "Expected profiles with file names of their own, got one name twice. Rename one."
            )
    given, asked = chosen_options(None, **chosen), chosen["variant"]
    options = [replace(given or Options(), variant=each) for each in Variant if asked in (None, each)]
    options += [] if given else [Options(parameters="strong")]
    told = [played(own, base, each) for each in options]
    flags = {name: value for name, value in {"baseline": baseline, **chosen}.items() if value is not None}
    words = ["securefl", "match", "--story", *map(str, profiles)]
    for name, value in flags.items():
        words += [FLAGS.get(name, f"--{name}"), str(value)]
    write(out, story_page.render(told, about=about, reproduce=shlex.join([*words, "-o", str(out)])))
    for story in told:
        scores = ", ".join(f"{client.label} {client.score:.4g}" for client in story.clients)
        how = f"{story.options.parameters}, {story.options.variant}"
        spent = ", ".join(f"{what} {1000 * seconds:.1f} ms" for what, seconds in story.seconds.items())
        click.echo(f"{how}: the key holder reads {scores}, within {story.bound:.1g} ({spent})")
    click.echo(f"Page: {shown(out)}. It shows the plain profiles, as no party of a match could.")


def example() -> tuple[Mapping[str, Profile], Profile]:
    """Three clients' profiles of packaged digits at a public random layer, and a baseline of other digits."""
    import numpy as np

    from securefl.data import load
    from securefl.data.corruptions import blurred, salt_and_pepper
    from securefl.matching.sealed import Profile
    from securefl.training import ModelConfig, profile

    digits = load("digits")
    clean, dotted, smooth = (digits.train.x[at : at + _RECORDS] for at in range(0, 3 * _RECORDS, _RECORDS))
    config = ModelConfig(kind="mlp", hidden=(16,))
    model = config.build(digits.train.x.shape[1:], 10, seed=_SEED)

    def of(x: np.ndarray) -> Profile:
        found = profile(model, config.layer, _GREYS * x)
        return Profile(found.mean, found.variance, found.count)

    clients = {
        "clean digits": of(clean),
        "dotted digits": of(salt_and_pepper(dotted, rng=np.random.default_rng(_SEED))),
        "blurred digits": of(blurred(smooth)),
    }
    return clients, of(digits.test.x)
