"""A site of NVFlare's own FedAvg, by its Client API: it trains, and the server gets its whole model."""

from __future__ import annotations

import sys
from pathlib import Path

import nvflare.client as flare
from nvflare.app_common.np.constants import NPConstants
from task import trained


def main(records: Path) -> None:
    flare.init()
    own = records / f"{flare.get_site_name()}.npz"
    while flare.is_running():
        received = flare.receive()
        model, _, count = trained(received.params[NPConstants.NUMPY_KEY], own)
        weight = {"NUM_STEPS_CURRENT_ROUND": count}  # FedAvg weighs by this number
        flare.send(flare.FLModel(params={NPConstants.NUMPY_KEY: model}, meta=weight))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
