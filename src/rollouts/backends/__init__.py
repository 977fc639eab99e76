"""The table of backends. It holds strings, so that nobody pays for an SDK they do not use."""

from importlib import import_module
from pathlib import Path

from rollouts.backends.base import Backend
from rollouts.config import DockerSettings
from rollouts.errors import BackendUnavailable

BACKENDS = {
    "docker": "rollouts.backends.docker:DockerBackend",
    "local": "rollouts.backends.local:LocalBackend",
}


def open_backend(name: str, settings: DockerSettings, cache_dir: Path) -> Backend:
    """The backend of that name, not yet checked for use."""
    if name not in BACKENDS:
        raise BackendUnavailable(f"the backend {name} is not part of this version; use {' or '.join(BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    backend: type[Backend] = getattr(import_module(module), attribute)
    return backend(settings, cache_dir)
