"""Stops runs hundreds of times, in every way, at random instants, and demands the same root and every row once.

    python tests/chaos/chaos.py --kills 300 --seed 1

Two engines: a fake one, and a tiny real model, which takes a tenth of the stops. Prints a tally; ends with status 1 at
the first thing that is not as it must be, and tells the events that led to it. docs/chaos.md says what is checked.
"""

import argparse
import json
import platform
import random
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.campaign import Campaign
from chaos.checks import ChaosError
from chaos.server import Server
from chaos.setting import DISK_BYTES, Setting, small_disk
from chaos.tally import WAYS, Tally


def campaign(engine: str, stops: int, seed: int, folder: Path) -> tuple[Tally, bool]:
    """(tally, whether there was a small disk to fill)."""
    with small_disk(folder / f"{engine}-disk") as disk:
        setting = Setting(engine, folder / engine, disk)
        ways = tuple(way for way in WAYS if way != "full" or disk)
        with Server(engine, setting.environment) as server:
            chance = random.Random(f"{engine} {seed}")
            try:
                tally = Campaign(setting, server, chance, Tally(engine), ways=ways).run(stops)
            except ChaosError:
                if disk:  # it is about to vanish
                    shutil.copytree(disk / "runs", folder / f"{engine}-evidence")
                raise
        return tally, disk is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="stops in all (default 300)")
    parser.add_argument("--model-kills", type=int, help="of these, with the tiny model (default a tenth)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the tally to this file")
    options = parser.parse_args()
    with_model = options.kills // 10 if options.model_kills is None else options.model_kills
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    tallies = []
    try:
        for engine, stops in (("fake", options.kills - with_model), ("tiny", with_model)):
            if stops:
                tally, has_disk = campaign(engine, stops, options.seed, folder)
                print(f"{tally}\n", flush=True)
                tallies.append(tally)
    except ChaosError as error:
        print(f"chaos with seed {options.seed}: {error}", file=sys.stderr)
        return 1
    disk = f"a tmpfs of {DISK_BYTES >> 20} MiB" if has_disk else "none could be mounted"
    print(f"{sum(tally.stops for tally in tallies)} stops, seed {options.seed}; small disk: {disk}")
    if options.json:
        facts = {"seed": options.seed, "small_disk": disk, "machine": f"{platform.system()} {platform.machine()}"}
        document = facts | {"campaigns": [tally.as_json() for tally in tallies]}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
