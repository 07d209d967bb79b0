"""A study over NVFlare on this machine: parties in processes of their own, sites in NVFlare's simulator.

    pip install 'nvflare==2.9.*'
    python examples/nvflare/simulate.py [--study STUDY] [--out DIR]

Parties, keys and roster are made as for Flower. The simulator listens on loopback alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import securefl_collab
from nvflare.collab import CollabRecipe
from nvflare.recipe import SimEnv

FLOWER = Path(__file__).resolve().parents[1] / "flower"
sys.path.append(str(FLOWER))

from parties import make_parties, parts, serve_parties, tell  # noqa: E402
from processes import federation  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--study", type=Path, default=FLOWER / "study.toml")
    parser.add_argument("--out", type=Path, default=Path("runs/nvflare"))
    chosen = parser.parse_args()
    folder = chosen.out.resolve()
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"Expected a new folder, got {folder}, which has files. Remove it, or name another: --out.")
    folder.mkdir(parents=True, exist_ok=True)
    names = parts(chosen.study)
    sites = [name for name in names if name != "server"]
    with federation(folder) as own:
        make_parties(own, chosen.study, names)
        serve_parties(own, names)
        recipe = CollabRecipe(
            "securefl", server=securefl_collab, client=securefl_collab, min_clients=len(sites)
        )
        for give in (recipe.set_server_prop, recipe.set_client_prop):
            give("parties", str(folder / "parties"))
        recipe.set_server_prop("out", str(folder / "run"))
        recipe.execute(SimEnv(clients=sites, workspace_root=str(folder / "nvflare")))
        tell(own, names)


if __name__ == "__main__":
    main()
