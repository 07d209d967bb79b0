"""The command `audit`: tests every mechanism empirically against its claimed privacy."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securefl.commands.choices import NEW_FILE, with_json
from securefl.commands.exit_codes import ExitCode
from securefl.commands.printing import echo, echo_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from securefl.training.devices import Wanted


@click.command(epilog="Example:  securefl audit --json")
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="The device on which private training and features are tested.",
)
@click.option("-o", "--out", type=NEW_FILE, help="Draw claims and proved bounds, too: .pdf, .svg or .png.")
@with_json()
def audit(device: Wanted, out: Path | None, as_json: bool) -> None:
    """Test whether any mechanism reveals more than its claimed epsilon (one or two minutes).

    For each mechanism, the audit searches for records that change it by more than its sensitivity, compares
    its noise with the claimed distribution, and computes a lower bound on epsilon by distinguishing two
    neighbouring data sets. For private training (DP-SGD), it sends canaries through the real optimiser, along
    the curve of its claim, and uses records on the kinks of ReLUs, which flip together if a record's gradient
    depends on its batch. The picture has the curve of each claim, and what was proved of it as triangles:
    those of an honest claim are left of its curve. The exit code is 1 if a mechanism fails. A correct one
    fails once in 10^5 runs.
    """
    from securefl.report.paper import require_picture, write_figure
    from securefl.training import single_thread
    from securefl.training.audits import findings as audited
    from securefl.training.devices import chosen

    if out is not None:
        require_picture(out)
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
    if out is not None:
        write_figure(out, _picture(findings))
    if as_json:
        echo_json(findings, 1)
    elif out is not None:
        echo(f"Figure: {out}")
    if any(found["verdict"] != "pass" for found in findings):
        # Without an error message, because the table or the JSON says which mechanism failed.
        raise SystemExit(ExitCode.ERROR)


def _picture(findings: Sequence[Mapping[str, Any]]) -> Figure:
    """The curve of each claim, with the bounds that were proved of the mechanisms that make it."""
    from securefl.accounting.curve import Curve
    from securefl.accounting.events import load_event
    from securefl.report.privacy_plots import curves

    by_claim: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for found in findings:
        by_claim[json.dumps(found["event"])].append(found)
    claims, proved = dict[str, Curve](), dict[str, list[tuple[float, float]]]()
    for own in by_claim.values():
        first, *others = dict.fromkeys(found["name"] for found in own)
        name = first + (f" and {len(others)} more" if others else "")
        claims[name] = Curve.of({load_event(own[0]["event"]): 1})
        proved[name] = [(found["lower"], found["delta"]) for found in own]
    return curves(claims, proved)
