"""The command `features`: computes image features by EfficientNet-Lite0."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.printing import echo


@click.command(epilog="Example:  securefl features cifar10 --out cifar10.npz")
@click.argument("source")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="A .npz file for the training part. The test part gets a file beside it.",
)
@click.option(
    "--records", type=click.IntRange(min=1), help="The number of first records of each part to use."
)
def features(source: str, out: Path, records: int | None) -> None:
    """Compute features of data set SOURCE by EfficientNet-Lite0, for protocols such as `heads`.

    OUT holds `x` (float32, most important features first), `y` and the text `network` of the training part.
    A file with "-test" in its name holds those of the test part. A study names both under [data], as `source`
    and `test`. Features are kept in the user's cache, so a stopped command can be resumed.
    """
    from rich.progress import Progress

    from securefl.core.errors import ConfigError
    from securefl.data import Dataset, load
    from securefl.data.files import cache_folder
    from securefl.data.networks import outside
    from securefl.training import single_thread
    from securefl.training.pretrained import lite0

    if out.suffix != ".npz":
        raise ConfigError(f"Expected --out with the ending .npz, got {out}.")
    single_thread()
    split = load(source)
    if len(split.train.shape) != 3 or split.train.shape[0] != 3 or not split.train.classes:
        raise ConfigError(f"Expected images of three colours with classes, got {source!r}. Take cifar10.")
    network = lite0()
    echo(outside(network.about, source), err=True)

    def write(part: Dataset, path: Path, name: str) -> None:
        import numpy as np

        from securefl.storage.files import replacing

        part = part if records is None else part.take(slice(records))
        with Progress(transient=True) as bars:
            bar = bars.add_task(name, total=len(part))
            found = network.features(
                part.x, cache_folder() / "features", lambda done: bars.update(bar, completed=done)
            )
        with replacing(path) as target:
            np.savez(target, x=found, y=part.y, network=np.array(network.about))
        click.echo(path)

    write(split.train, out, "training part")
    write(split.test, out.with_name(f"{out.stem}-test.npz"), "test part")
