"""Everything a run needs before its sandbox starts: the task's source and the image, each made once per content."""

import os
import threading
from pathlib import Path

from rollouts.agents import open_agent, secrets_of
from rollouts.agents.base import Agent
from rollouts.backends.base import BOX_REPO, Backend, Image, LogSink, Once
from rollouts.config import Benchmark
from rollouts.digests import digest_folder, digest_of
from rollouts.errors import SandboxFailed
from rollouts.logs import Scrubber
from rollouts.plan import RunSpec
from rollouts.tasks import HIDDEN_FROM_AGENTS, Task
from rollouts.workspace import Source, find_source, prepare_source


class Preparation:
    """Makes sources and images on demand. Safe to ask from many threads; the first does the work."""

    def __init__(self, benchmark: Benchmark, backend: Backend, cache: Path) -> None:
        self.benchmark, self._backend, self._cache = benchmark, backend, cache
        self.secrets = backend.secrets = secrets_of(benchmark, os.environ)
        self._once = Once(backend.cancelled)
        self._lock = threading.Lock()
        self._sources: dict[str, Source] = {}
        self._images: dict[tuple[str, str, bool], Image] = {}
        self._agents: dict[str, Agent] = {}

    def agent(self, spec: RunSpec) -> Agent:
        """Who tries."""
        with self._lock:
            if spec.agent not in self._agents:
                self._agents[spec.agent] = open_agent(spec.agent, self.benchmark)
            return self._agents[spec.agent]

    def source(self, task: Task) -> Source:
        """The task's source; raises SandboxFailed when it cannot be had."""
        self._once(task.digest, lambda: self._sources.update({task.digest: prepare_source(task, self._cache)}))
        return self._sources[task.digest]

    def image(self, spec: RunSpec) -> Image:
        """The recipe of the run's box. The same object for all runs that share it."""
        source, install = self.source(spec.task), self.agent(spec).install
        with self._lock:
            as_root = spec.profile == "compat"
            key = (spec.task.digest, install or "", as_root)
            if key not in self._images:
                self._images[key] = image_of(spec.task, source, install, as_root=as_root)
            return self._images[key]

    def scoring_image(self, task: Task, sink: LogSink) -> Image:
        """The box that patches are scored in, built: the same without any agent."""
        source = self.source(task)
        with self._lock:
            image = self._images.setdefault((task.digest, "", False), image_of(task, source, None))
        self._prepare(image, sink)
        return image

    def planned_image(self, spec: RunSpec) -> Image | None:
        """The recipe without making anything; None when the source would have to be fetched first."""
        source = find_source(spec.task, self._cache)
        if source is None:
            return None
        return image_of(spec.task, source, self.agent(spec).install, as_root=spec.profile == "compat")

    def ready(self, spec: RunSpec, sink: LogSink) -> Image:
        """The image, built."""
        image = self.image(spec)
        self._prepare(image, sink)
        return image

    def _prepare(self, image: Image, sink: LogSink) -> None:
        """What a build prints, and why it failed, is told without secrets."""
        scrub = Scrubber(self.secrets)
        try:
            self._backend.prepare(image, lambda data: sink(scrub(data)))
        except SandboxFailed as exc:
            raise type(exc)(Scrubber(self.secrets).text(str(exc))) from None
        finally:
            if rest := scrub.rest():
                sink(rest)


def image_of(task: Task, source: Source, install: str | None, *, as_root: bool = False) -> Image:
    """The recipe for a task's box."""
    dockerfile = None if task.environment.image else task.dockerfile
    context = digest_folder(task.folder, HIDDEN_FROM_AGENTS) if dockerfile else ""
    overlay = task.part("overlay_files")
    return Image(
        task_id=task.task_id,
        tree=source.tree,
        base_git=source.base_git,
        source_digest=source.digest,
        instructions=task.instructions,
        base=task.environment.image,
        dockerfile=dockerfile,
        dockerfile_context=task.folder,
        dockerfile_hidden=HIDDEN_FROM_AGENTS,
        dockerfile_digest=digest_of(dockerfile.read_bytes().hex(), context) if dockerfile else "",
        install=install,
        overlay=overlay,
        overlay_digest=digest_folder(overlay),
        workdir=task.environment.workdir or BOX_REPO,
        subdir=task.repo.subdir,
        user=task.environment.user,
        as_root=as_root,
    )
