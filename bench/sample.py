"""One sample with one tree's code, for `against.py`; prints what it cost.

sample.py TREE FOLDER docker PARALLEL | help | plan
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import rollouts
from measure import Cost


def take(tree: Path, folder: Path, part: str, *words: str) -> Cost:
    """Imports only what the sample needs: an old tree may lack the rest."""
    match part:
        case "docker":
            import docker_overhead

            return docker_overhead.sample(folder, int(words[0]))
        case "plan":
            import plan_cost

            return plan_cost.sample(folder)
        case _:
            import help_time

            return help_time.sample(tree)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    if not Path(rollouts.__file__).is_relative_to(root):
        sys.exit(f"there is no rollouts package in {root}/src; found {rollouts.__file__}")
    print(json.dumps(asdict(take(root, Path(sys.argv[2]), *sys.argv[3:]))))
