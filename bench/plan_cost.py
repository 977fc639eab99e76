"""What planning, journal and manifest cost of our own CPU, and whether that grows with the number of runs alone."""

import json
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median

from measure import SAMPLE_TASK, Cost, Row, alternate, scratch_folder, timed
from rollouts.planning import Plan, plan_batch
from rollouts.results import RunResult, Status
from rollouts.store import Batch, DataRoot, now

SMALL, LARGE = 1_000, 10_000
CPU_BOUND_S = 5.0
GROWTH_BOUND = 1.5
MODELS = [f"vendor/model-{number}" for number in range(10)]


def measure(quick: bool) -> list[Row]:
    """The large plan's CPU, and how much dearer each of its runs is than one of the small plan's."""
    with scratch_folder() as folder:
        sides = (partial(run_bookkeeping, folder, LARGE), partial(run_bookkeeping, folder, SMALL))
        pairs = alternate(*sides, 1 if quick else 3)
    large, small = (median(cost.cpu_s for cost in side) for side in zip(*pairs, strict=True))
    growth = median(big.cpu_s / LARGE / (little.cpu_s / SMALL) for big, little in pairs)
    wall = median(big.wall_s for big, _ in pairs)
    each = f"{large / LARGE * 1000:.2f} ms / {small / SMALL * 1000:.2f} ms per run"
    return [
        Row(f"plan, journal, manifest: CPU, {LARGE:,} runs", large, "s", f"wall {wall:.1f} s", CPU_BOUND_S),
        Row(f"plan, journal, manifest: growth from {SMALL:,}", growth, "x", each, GROWTH_BOUND),
    ]


def run_bookkeeping(folder: Path, runs: int) -> Cost:
    """Everything a batch costs besides its sandboxes: read, plan, create, start and end each run, close."""
    config = folder / "plan.toml"
    task = f'[[tasks]]\nprepared_dir = "{SAMPLE_TASK}"\nmodels = {MODELS}\nrollouts = {runs // len(MODELS)}\n'
    config.write_text(f'agent = "nop"\n{task}')
    return timed(partial(_keep_books, config, DataRoot(folder / "data")))


def _keep_books(config: Path, root: DataRoot) -> None:
    plan = plan_batch(config, backend="local", parallel=None, only=None)
    batch = Batch.create(root, plan.benchmark.name, _header(plan), plan.specs, config.read_bytes())
    for spec in plan.specs:
        batch.ended(_ended(batch.started(f"{batch.stamp}-{spec.index}")))
    batch.close(finished=True)


def _header(plan: Plan) -> dict[str, object]:
    return {"config": str(plan.config), "backend": plan.backend, "parallel": plan.parallel}


def _ended(begun: RunResult) -> RunResult:
    changes = {"files": 1, "lines_added": 2, "lines_removed": 3}
    return replace(begun, status=Status.LAUNCHED, launch_rc=0, changes=changes, duration_s=1.0, finished_at=now())


if __name__ == "__main__":  # a middling plan with whatever tree is on the path, for `against.py`
    place = Path(sys.argv[1])
    run_bookkeeping(place, 100)
    print(json.dumps(asdict(run_bookkeeping(place, 2 * SMALL))))
