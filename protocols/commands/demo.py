"""`securefl demo`: FedAvg and FedProf on real data beside a head with a finite epsilon, in two minutes."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.telling import find, on_workers, run_and_tell, timestamped, with_workers


@click.command(epilog="Example:  securefl demo --out runs/demo")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Run folder; default runs/demo-<time>."
)
@with_workers
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, and nothing else.")
def demo(out: Path | None, workers: int | None, as_json: bool) -> None:
    """FedAvg, FedProf with concealed profiles, and a head at epsilon 2, on digits over 60 clients.

    40 % of the clients hold noisy, blurred or irrelevant images. Updates are summed under masks: the
    server learns the sum. Profiles travel under pads: it learns one score per client, the key holder who
    takes part. Neither is noised, so the epsilon of these arms is infinite. The head is solved from one
    masked sum with the clients' noise: nobody learns more of a record than epsilon 2 allows. Ends with a
    report and a table of the arms: accuracy, rounds, bytes and epsilons. A sentence says what the finite
    epsilon cost in accuracy.
    """
    run_and_tell(on_workers(find("demo"), workers), out or timestamped("demo"), as_json)
