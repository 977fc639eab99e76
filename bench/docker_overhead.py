"""No-op runs through the product against the bare engine doing create, start, wait and remove.

The product's side is `batch.run_batch` with the real console: journal, manifest, capture, artifacts and removal are all
in it. The bare side makes containers of the very configuration that the product sent to the engine, with `true` in
place of our supervisor, in as many threads. Both run in this process, warmed up: imports and builds are in neither.
"""

import io
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import docker

from measure import SAMPLE_TASK, Cost, Pairs, Row, alternate, scratch_folder, timed, wall_ratio
from rollouts.batch import run_batch
from rollouts.console import RunConsole
from rollouts.errors import BackendUnavailable, ExitCode
from rollouts.planning import plan_batch
from rollouts.store import DataRoot

RATIO_BOUND = 1.3
CPU_BOUND_S = 0.1
RUNS = {1: 12, 4: 24, 8: 40}
"""How many runs a round has, by parallelism."""

ContainerConfig = dict[str, Any]


def measure(quick: bool) -> list[Row]:
    """A row for the wall clock and one for our CPU, for each parallelism."""
    rows = []
    with scratch_folder() as folder:
        config = recorded_config(folder)
        for parallel, runs in RUNS.items():
            ours, bare = partial(run_product, folder, runs, parallel), partial(run_bare, config, runs, parallel)
            pairs = alternate(ours, bare, 2 if quick else 6)
            rows += [
                wall_ratio(f"docker, parallel {parallel}: run / bare", pairs, runs, RATIO_BOUND),
                cpu_row(f"docker, parallel {parallel}: our CPU per run", pairs, runs),
            ]
    return rows


def why_not() -> str | None:
    """Why this part cannot be measured here; None when it can."""
    try:
        with scratch_folder() as folder:
            run_product(folder, 1, 1)
    except BackendUnavailable as exc:
        return str(exc)
    return None


def run_product(folder: Path, runs: int, parallel: int) -> Cost:
    """One batch of no-op runs, from its file to the last container's removal."""
    return timed(partial(run_batch_of, folder, "nop", runs, parallel))


def run_batch_of(folder: Path, agent: str, runs: int, parallel: int) -> None:
    """The same for any agent that needs no model; the benchmark's name is the agent's."""
    _run_batch(write_config(folder, runs, agent), DataRoot(folder / "data"), parallel)


def write_config(folder: Path, runs: int, agent: str = "nop") -> Path:
    """A benchmark of that many runs on a sample task."""
    config = folder / f"{agent}.toml"
    config.write_text(f'agent = "{agent}"\n[[tasks]]\nprepared_dir = "{SAMPLE_TASK}"\nrollouts = {runs}\n')
    return config


def _run_batch(config: Path, root: DataRoot, parallel: int) -> None:
    plan = plan_batch(config, backend="docker", parallel=parallel, only=None)
    console = RunConsole(0, io.StringIO(), io.StringIO())
    outcome = run_batch(plan, root, console)
    console.close(outcome.results)
    if outcome.exit_code is not ExitCode.OK:
        raise SystemExit(f"a run failed: {next(result.error for result in outcome.results if result.error)}")


def recorded_config(folder: Path) -> ContainerConfig:
    """What the product asks the engine for, flags and limits included, with nothing to do in the container."""
    asked: list[ContainerConfig] = []
    create = docker.APIClient.create_container_from_config

    def record(client: docker.APIClient, config: ContainerConfig, *rest: Any) -> Any:
        asked.append(config)
        return create(client, config, *rest)  # type: ignore[no-untyped-call] # docker's stubs lack it

    with patch.object(docker.APIClient, "create_container_from_config", record):
        run_product(folder, 1, 1)
    return {**asked[0], "Entrypoint": ["true"], "Cmd": []}


def run_bare(config: ContainerConfig, runs: int, parallel: int) -> Cost:
    """As many containers, one after the other in each of as many threads."""
    client = docker.from_env(timeout=120, max_pool_size=64)
    try:
        with ThreadPoolExecutor(parallel) as pool:
            return timed(lambda: list(pool.map(lambda _: _run_container(client.api, config), range(runs))))
    finally:
        client.close()


def _run_container(api: docker.APIClient, config: ContainerConfig) -> None:
    container = api.create_container_from_config(config, None)["Id"]  # type: ignore[no-untyped-call] # as above
    api.start(container)
    api.wait(container)
    api.remove_container(container, v=True, force=True)


def cpu_row(name: str, pairs: Pairs, runs: int) -> Row:
    """What one run costs this process and its children."""
    ours, bare = (median(cost.cpu_s for cost in side) / runs for side in zip(*pairs, strict=True))
    return Row(name, ours, "s", f"bare {bare:.3f} s", CPU_BOUND_S)
