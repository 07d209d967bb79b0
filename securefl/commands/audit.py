"""The command `audit`: tests every mechanism empirically against its claimed privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from securefl.commands.choices import with_json
from securefl.commands.exit_codes import ExitCode
from securefl.commands.printing import echo, echo_json

if TYPE_CHECKING:
    from securefl.training.devices import Wanted


@click.command(epilog="Example:  securefl audit --json")
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="The device on which private training and features are tested.",
)
@with_json()
def audit(device: Wanted, as_json: bool) -> None:
    """Test whether any mechanism reveals more than its claimed epsilon (one or two minutes).

    For each mechanism, the audit searches for records that change it by more than its sensitivity, compares
    its noise with the claimed distribution, and computes a lower bound on epsilon by distinguishing two
    neighbouring data sets. For private training (DP-SGD), it sends canaries through the real optimiser, along
    the curve of its claim, and uses records on the kinks of ReLUs, which flip together if a record's gradient
    depends on its batch. The exit code is 1 if a mechanism fails. A correct one fails once in 10^5 runs.
    """
    from securefl.training import single_thread
    from securefl.training.audits import findings as audited
    from securefl.training.devices import chosen

    # One thread, because the last bits of a sum depend on its split over threads, and a verdict with them.
    single_thread()
    hardware = chosen(device, say=lambda line: echo(line, err=True))
    findings = []
    for found in audited(hardware.device):
        findings.append(found)
        if not as_json:
            at = f"at delta {found['delta']:g}"
            echo(
                f"{found['name']:51} claimed epsilon {found['claimed']:7.4f} {at:15} "
                f"at least {found['lower']:7.4f}   {found['verdict']}"
            )
    if as_json:
        echo_json(findings, 1)
    if any(found["verdict"] != "pass" for found in findings):
        # Without an error message, because the table or the JSON says which mechanism failed.
        raise SystemExit(ExitCode.ERROR)
