"""The command `audit`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from securefl.training.devices import Wanted


@click.command(epilog="Example:  securefl audit --json")
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="Where private training and features are tried.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
def audit(device: Wanted, as_json: bool) -> None:
    """Try to catch every mechanism at giving away more than it claims (one or two minutes).

    For each: a search for records that move it more than its sensitivity, its noise against the claimed law,
    and a lower bound on epsilon by telling two neighbouring data sets apart; for private training (DP-SGD)
    canaries through the real optimiser, along the curve of its claim, and records on the kinks of ReLUs,
    which flip together where a record's gradient depends on its batch. Exit code 1 if one fails. An honest
    mechanism fails once in 10^5 runs.
    """
    from securefl.training import single_thread
    from securefl.training.audits import findings as audited
    from securefl.training.devices import chosen

    # One thread: how a sum is split decides its last bits, and so a verdict would hang on the machine.
    single_thread()
    hardware = chosen(device, say=lambda line: click.echo(line, err=True))
    findings = []
    for found in audited(hardware.device):
        findings.append(found)
        if not as_json:
            at = f"at delta {found['delta']:g}"
            click.echo(
                f"{found['name']:51} claimed epsilon {found['claimed']:7.4f} {at:15} "
                f"at least {found['lower']:7.4f}   {found['verdict']}"
            )
    if as_json:
        click.echo(json.dumps(findings, indent=1))
    if any(found["verdict"] != "pass" for found in findings):
        # Not an error message: the table above, or the JSON, says already which one failed.
        raise SystemExit(1)
