"""Files and flags of the matching commands: types of paths, and public options of a matching.

click checks no path: it would stop a command at the first file that it cannot open, in words of its own. The
readers refuse each file by name (`storage.inputs`).
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from securefl.commands.printing import echo
from securefl.core.errors import ConfigError, DataError, SecureFLError
from securefl.storage.inputs import shown

if TYPE_CHECKING:
    from securefl.dp.moments import MeanVariance
    from securefl.matching.keys import EvaluatorPublic, PublicKeys
    from securefl.matching.options import Options, Word
    from securefl.matching.profiles import Anchor
    from securefl.matching.sealed import Profile

FOR_YOU_ALONE: Final = "This is for you alone: no epsilon covers it."
FILE: Final = click.Path(path_type=Path, readable=False)
PATH: Final = click.Path(path_type=Path)
FOLDER: Final = click.Path(path_type=Path, file_okay=False)
NEW_FILE: Final = click.Path(path_type=Path, dir_okay=False)


Command = Callable[..., None]


def completing(names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """A completion of an argument in a shell: these names, or the path of a file if none fits."""

    def complete(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names() if name.startswith(begun)]
        return found or [CompletionItem(begun, type="file")]

    return complete


def with_json(words: str = "Print JSON, and nothing else.") -> Callable[[Command], Command]:
    """Add the option `--json`, the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=words)


_BOUNDS: Final = {
    "--spread": "Largest weight of a baseline over the root mean square of all; default 8.",
    "--weight-bound": "Largest root mean square weight of a baseline; default 32, compact 16, others 1024.",
    "--variance-high": "Largest anchored variance; a larger is clipped. Default 512, compact 64.",
    "--variance-low": "Smallest anchored variance; a smaller is clipped. Default 6e-08.",
    "--mean-bound": "Largest anchored |mean|; a larger is clipped. Default 64, compact 16.",
}


def with_options(command: Command) -> Command:
    """Add the options that must be equal for clients, the baseline's owner and the evaluator."""
    for flag, words in _BOUNDS.items():
        name = flag[2:].removesuffix("-bound").replace("-", "_")  # as a field of `Bounds`
        command = click.option(flag, name, type=float, help=words)(command)
    for option in (
        click.option("--anchor", type=FILE, help="Public profile (JSON) that values are standardised by."),
        click.option(
            "--params",
            type=click.Choice(["pads", "pads-128", "strong", "compact", "strong-encrypted"]),
            help="Default pads, which have no homomorphic key. pads-128 takes twice the bytes, for wider "
            "bounds. strong and compact are CKKS with a declared baseline; compact takes a quarter of the "
            "bytes, and its scores are coarser. strong-encrypted is CKKS with an encrypted baseline.",
        ),
        click.option(
            "--variant",
            type=click.Choice(["full", "mean-only"]),
            help="Default full. mean-only lets the evaluator read the variances.",
        ),
    ):
        command = option(command)
    return command


def with_declared(command: Command) -> Command:
    """Add `--declared` and the options that a declaration has."""
    return click.option(
        "--declared",
        type=FILE,
        help="The evaluator's declaration of its baseline (securefl declare), with all options. Beside it, "
        "--spread is the most that you agree to (default 8), and --anchor is compared.",
    )(with_options(command))


def declared_options(
    keys: PublicKeys,
    evaluator: EvaluatorPublic,
    declared: Path | None,
    own: Profile | None = None,
    **chosen: Any,
) -> Options | None:
    """The options in a declaration or in the flags. If neither was given, it returns None.

    Beside a declaration --spread and --anchor are what this party agrees to. own: its profile, which must be
    one of the declared length, and of the model of declaration and anchor.
    """
    from securefl.matching import document
    from securefl.matching.declared import Declaration

    if declared is None:
        return chosen_options(own, **chosen)
    spread, anchor = chosen.pop("spread", None), chosen.pop("anchor", None)
    if any(flag is not None for flag in chosen.values()):
        raise click.UsageError(
            "Expected --declared with --spread and --anchor alone, since it has all options, got flags "
            "beside it."
        )
    told = document.load(declared, Declaration)
    options = told.checked(keys, evaluator, spread=spread, anchor=_read_anchor(anchor, own))
    if own is not None:
        told.require_like(own)
    return options


def chosen_options(
    own: Profile | None,
    variant: str | None,
    params: Word | None,
    anchor: Path | None,
    **bounds: float | None,
) -> Options | None:
    """The options in the flags, completed by defaults. If no flag was given, it returns None."""
    from securefl.matching.options import Options, default_bounds
    from securefl.matching.profiles import Bounds, Variant

    # None means "the options of all profiles", so defaults alone must not count as a choice.
    if all(flag is None for flag in (variant, params, anchor, *bounds.values())):
        return None
    params = params or "pads"
    said = {name: value for name, value in bounds.items() if value is not None}
    # The parameters' own defaults, because coarser parameters have tighter bounds.
    return Options(
        variant=Variant(variant or Variant.FULL),
        parameters=params,
        bounds=Bounds(**{**vars(default_bounds(params)), **said}),
        anchor=_read_anchor(anchor, own),
    )


def _read_anchor(path: Path | None, own: Profile | None) -> Anchor | None:
    from securefl.matching.admission import differing_model
    from securefl.matching.profile_file import read_profile
    from securefl.matching.profiles import Anchor

    if path is None:
        return None
    public = read_profile(path)
    if own is not None and (why := differing_model(own.model, public.model)):
        raise DataError(f"{shown(path)}: {why}")
    return Anchor.of(public)


def tell_declared(options: Options) -> None:
    """Say what a party takes on the evaluator's word when it encrypts for a declared baseline."""
    bounds, anchor = options.bounds, options.anchor
    echo(f"declared: a baseline of weights up to {bounds.weight:g} and a spread up to {bounds.spread:g}")
    if anchor is not None:
        least, most = anchor.scale.min(), anchor.scale.max()
        echo(
            f"the anchor came with the declaration: scales from {least:.3g} to {most:.3g}; beside huge ones "
            "a score is nearly one entry of your profile. Compare it: --anchor FILE"
        )


def require_free(out: Path, kind: str, *inputs: Path | None) -> None:
    """Raise ConfigError or DataError if the output would overwrite an input, or a file of another kind."""
    from securefl.matching.document import require_replaceable

    # `Path.resolve` raises RuntimeError for a link that leads to itself, which the reader refuses by name.
    places = {os.path.realpath(path) for path in inputs if path is not None}
    if os.path.realpath(out) in places:
        raise ConfigError(
            f"Expected an output apart from the inputs, got {shown(out)}, an input. Choose another file with "
            "--out."
        )
    require_replaceable(out, kind)


def within(bound: float, params: Word) -> str:
    """An error bound in words. That of pads always holds."""
    from securefl.matching.options import WORD_BITS

    return (
        f"within {bound:.2g}" if params in WORD_BITS else f"within {bound:.2g}, except with probability 1e-6"
    )


def tell_floored(count: int) -> None:
    from securefl.matching.profiles import VARIANCE_FLOOR

    if count:
        echo(
            f"{count} variances were below {VARIANCE_FLOOR:g} and are raised to it. {FOR_YOU_ALONE}", err=True
        )


def tell_refused_baseline(own: MeanVariance, options: Options) -> bool:
    """Say, before others wait, if a baseline like this profile would be refused. Whether it would be."""
    try:
        options.query(own)
    except SecureFLError as error:
        by = "" if options.anchor is None else " with this anchor"
        echo(f"A baseline like it would be refused{by}. {error} {FOR_YOU_ALONE}", err=True)
        return True
    return False


def with_private(command: Command) -> Command:
    """Add the option `--private`."""
    return click.option(
        "--private",
        is_flag=True,
        help="Show accuracies of personal models too. No epsilon covers them: do not publish the result.",
    )(command)
