"""Scoring a batch against the bare engine that runs the same tests in as many containers.

The product's side is `evaluate_batch` with `force`, over the runs of one batch that solved a sample task: apply,
put back, hand the tree in, test, check, write the verdicts. The bare side makes containers of the very configuration
that the product sent to the engine, from an image in which the solved tree with the hidden tests already lies, and runs
`python3 -m pytest` over the same files. Both run in this process, warmed up, and neither builds anything.
"""

import io
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import docker

from docker_overhead import ContainerConfig, cpu_row, run_bare, run_batch_of
from measure import SAMPLE_TASK, Cost, Row, alternate, scratch_folder, timed, wall_ratio
from rollouts.console import EvalConsole
from rollouts.errors import ExitCode
from rollouts.evaluation import EvalOptions, evaluate_batch
from rollouts.scoring.job import ScoringBox
from rollouts.scoring.runner import plan_tests
from rollouts.store import DataRoot, find_batch
from rollouts.task_folder import load_task

RATIO_BOUND = 1.3
RUNS = 20
PARALLEL = (1, 4, 8)


def measure(quick: bool) -> list[Row]:
    """A row for the wall clock and one for our CPU, for each parallelism."""
    rows = []
    with scratch_folder() as folder:
        run_batch_of(folder, "oracle", RUNS, 8)
        with _bare_config(folder) as config:
            for parallel in PARALLEL:
                ours, bare = partial(score, folder, parallel), partial(run_bare, config, RUNS, parallel)
                pairs = alternate(ours, bare, 2 if quick else 6)
                rows += [
                    wall_ratio(f"scoring, parallel {parallel}: eval / bare", pairs, RUNS, RATIO_BOUND),
                    cpu_row(f"scoring, parallel {parallel}: our CPU per run", pairs, RUNS),
                ]
    return rows


def score(folder: Path, parallel: int) -> Cost:
    """All runs of the batch, once more."""
    return timed(partial(_score, folder, parallel))


def _score(folder: Path, parallel: int) -> None:
    root = DataRoot(folder / "data")
    console = EvalConsole(0, io.StringIO(), io.StringIO())
    options = EvalOptions(backend="docker", parallel=parallel, force=True)
    outcome = evaluate_batch(root, find_batch(root, "oracle"), options, console)
    console.close(outcome)
    if outcome.exit_code is not ExitCode.OK or not all(line.resolved for line in outcome.lines):
        raise SystemExit(f"a run was not resolved: {[line for line in outcome.lines if not line.resolved][:1]}")


@contextmanager
def _bare_config(folder: Path) -> Iterator[ContainerConfig]:
    """What the product asks the engine for, with the tested tree in the image and nothing but the tests to run."""
    asked: list[ContainerConfig] = []
    trees: list[bytes] = []
    create, run = docker.APIClient.create_container_from_config, ScoringBox.run

    def record(client: docker.APIClient, config: ContainerConfig, *rest: Any) -> Any:
        asked.append(config)
        return create(client, config, *rest)  # type: ignore[no-untyped-call] # docker's stubs lack it

    def keep(box: ScoringBox, *rest: Any) -> Any:
        trees.append(box.tree.archive())
        return run(box, *rest)

    with (
        patch.object(docker.APIClient, "create_container_from_config", record),
        patch.object(ScoringBox, "run", keep),
    ):
        _score(folder, 1)
    files = " ".join(plan_tests(load_task(SAMPLE_TASK)).python)
    command = f"cd /app/repo && exec python3 -m pytest -p no:cacheprovider -ra {files}"
    with closing(docker.from_env(timeout=120)) as client:
        made = client.api.create_container(asked[0]["Image"], ["true"])["Id"]
        client.api.put_archive(made, "/app/repo", trees[0])
        image = client.api.commit(made)["Id"]
        client.api.remove_container(made, force=True)
        try:
            yield {**asked[0], "Image": image, "Entrypoint": ["sh", "-c", command], "Cmd": []}
        finally:
            client.api.remove_image(image, force=True)
