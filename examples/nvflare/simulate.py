"""One federation twice on NVFlare's simulator: by its own FedAvg, and as masked sums: `make nvflare`.

    python examples/nvflare/simulate.py [--out DIR]

In the first run NVFlare's server gets the whole model of each site. In the second a party stands beside each
site: a process with ledger and keys, which masks what the site trained. NVFlare carries its messages, and the
server learns sums. Records, initial model, local steps and weights are the same, and so is the final model.

The simulator listens on loopback alone. All processes are ended at the end, whatever happens.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import psutil
from party import enrol
from task import ROUNDS, SITES, start, write_records

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "flower"))

from processes import PATIENCE, Federation, federation, new_folder  # noqa: E402

TOLERANCE = 1e-6
LOST = "Communication error with client"
"""What NVFlare's simulator says if another process took the port of a site. It then waits without end."""


def plain(folder: Path) -> None:
    """NVFlare's own FedAvg: the job and its simulation, in this process."""
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
    from nvflare.recipe import SimEnv

    recipe = NumpyFedAvgRecipe(
        name="plain",
        model=start().tolist(),
        min_clients=len(SITES),
        num_rounds=ROUNDS,
        train_script=str(HERE / "plain_client.py"),
        train_args=str(folder / "records"),
    )
    recipe.execute(SimEnv(clients=list(SITES), workspace_root=str(folder / "nvflare")))
    (written,) = (folder / "nvflare" / "plain").rglob("server.npy")
    written.rename(folder / "plain.npy")


def secure(folder: Path) -> None:
    """The same over NVFlare's `collab` calls: the job and its simulation, in this process."""
    import securefl_collab
    from nvflare.collab import CollabRecipe
    from nvflare.recipe import SimEnv

    recipe = CollabRecipe("secure", server=securefl_collab, client=securefl_collab, min_clients=len(SITES))
    for give in (recipe.set_server_prop, recipe.set_client_prop):
        give("folder", str(folder))
    recipe.execute(SimEnv(clients=list(SITES), workspace_root=str(folder / "nvflare")))


def make_parties(own: Federation) -> None:
    """Keys for all, and the roster in everybody's folder. In a deployment each owner does this for one."""
    folders = {name: own.folder / "parties" / name for name in [*SITES, "server"]}
    lines = "\n".join(enrol(folder, name) for name, folder in folders.items())
    for folder in folders.values():
        (folder / "roster.jsonl").write_text(lines)
    for name in SITES:
        own.start(name, sys.executable, HERE / "party.py", "serve", folders[name], name)
    for name in SITES:
        own.wait(name, lambda name=name: "serves on" in own.said(name))


def simulated(own: Federation, job: str) -> list[str]:
    """What a job prints. It runs in a process of its own, since a simulation leaves its state there."""
    # The simulator starts more processes, which import the task.
    command = ("env", f"PYTHONPATH={HERE}", sys.executable, Path(__file__), "--job", job)
    own.start(job, *command, "--out", own.folder)
    process, end = own.processes[job], monotonic() + PATIENCE
    try:
        while process.poll() is None and LOST not in own.said(job) and monotonic() < end:
            sleep(0.2)
    finally:
        # They lead sessions of their own, so that they would outlive the end of the job's group.
        for one in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            with suppress(psutil.NoSuchProcess):
                one.kill()
    if process.poll() != 0:
        how = "lost a site as it started; run it again" if LOST in own.said(job) else "failed"
        sys.exit(f"The {job} run {how}:\n{own.said(job)[-4000:]}")
    return own.said(job).splitlines()


def compared(folder: Path) -> float:
    """The largest difference between the final models of both runs."""
    one, other = (np.load(folder / f"{job}.npy", allow_pickle=False) for job in ("plain", "secure"))
    apart = float(np.abs(one.astype(np.float64) - other).max())
    print(f"final models: {len(one)} values, at most {apart:.1e} apart")
    return apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/nvflare"))
    parser.add_argument("--job", choices=["plain", "secure"], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        (plain if chosen.job == "plain" else secure)(chosen.out)
        return
    folder = new_folder(chosen.out)
    write_records(folder / "records")
    np.save(folder / "start.npy", start())
    with federation(folder) as own:
        print("NVFlare's own FedAvg: its server gets five whole models a round.", flush=True)
        simulated(own, "plain")
        print("The same, as masked sums of parties beside the sites.", flush=True)
        make_parties(own)
        said = simulated(own, "secure")
        print(*(line for line in said if line.startswith("round ")), sep="\n")
    if not (apart := compared(folder)) <= TOLERANCE:
        sys.exit(f"Expected final models at most {TOLERANCE:g} apart, got {apart:g}.")


if __name__ == "__main__":
    main()
