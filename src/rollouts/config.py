"""TOML text → a frozen `Benchmark`. All mistakes of a file are reported together, each with file, key and bad value.

Nothing here looks at tasks, engines or keys; it knows what a benchmark file may say. A field's description is what the
user reads after "expected", so it names the whole expectation.
"""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import tomli
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from rollouts.errors import ConfigError
from rollouts.mistakes import deeper_than, did_you_mean, mistakes, read_text, show

MAX_DEPTH = 16
MAX_KEY_COST = 4_000_000
"""What reading keys of many dots may cost: each costs the square of its dots, and seconds are not given for nothing."""
MAX_RUNS = 100_000
"""A plan above this is taken for a mistake."""
MAX_SECONDS = 30 * 86400
"""No time limit is longer than a month."""
DEFAULT_BASE_IMAGE = "python:3.12-slim-bookworm"
BACKENDS = ("docker", "modal", "local")
MODELLESS_AGENTS = ("oracle", "nop", "command", "replay")
"""Agents that call no model; with them a task entry need not name one, and the agent's name stands in its place."""
DEFAULT_AGENT = "codex"
_IMPLIED_AGENTS = (("claude", "claude-code"), ("gemini", "gemini-cli"))

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAME_EXPECTED = 'a name of 1 to 64 characters out of A-Z a-z 0-9 . _ - that does not start with "." or "-"'


def is_name(text: str) -> bool:
    """Whether `text` may name a benchmark, task or agent, and so be part of a path."""
    return _NAME.fullmatch(text) is not None


def _check(condition: bool, message: str = "") -> None:
    if not condition:
        raise ValueError(message)


def _checked_name(text: str) -> str:
    _check(is_name(text))
    return text


def _checked_benchmark_name(text: str) -> str:
    _check(is_name(text) and text != "temp")
    return text


def _checked_text(text: str) -> str:
    _check(bool(text.strip()) and "\0" not in text)
    return text


def _checked_model(text: str) -> str:
    _check(bool(text) and text.isprintable() and text == text.strip() and len(text) <= 200)
    return text


def _checked_env_names(names: tuple[str, ...]) -> tuple[str, ...]:
    _check(all(_ENV_NAME.fullmatch(name) for name in names))
    return names


def _checked_env_name(name: str) -> str:
    _check(not name or _ENV_NAME.fullmatch(name) is not None)
    return name


def _checked_base_url(text: str) -> str:
    _check("@" not in text, "expected an address without user and password; a key goes by api_key_env")
    _check(text.isascii() and text.isprintable() and " " not in text and len(text) <= 2000)
    try:
        url = urlsplit(text)
        fits = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # brackets that do not close, a port that is none
        fits = False
    _check(fits and "?" not in text and "#" not in text)
    return text


def _checked_environment(variables: Mapping[str, str]) -> Mapping[str, str]:
    _check(all(_ENV_NAME.fullmatch(name) and "\0" not in value for name, value in variables.items()))
    for name, kind in (
        ("TIMEOUT_SEC", f"seconds above 0, at most {MAX_SECONDS}"),
        ("TOKEN_LIMIT", "a whole number above 0"),
    ):
        if name in variables:
            try:
                number = float(variables[name])
            except ValueError:
                number = -1
            fits = number <= MAX_SECONDS if name == "TIMEOUT_SEC" else math.isfinite(number) and number == int(number)
            _check(
                number > 0 and fits, f"expected {name} to be a string that holds {kind}, got {show(variables[name])}"
            )
    return variables


def _checked_agent_names(agents: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in agents:
        _check(is_name(name), f"expected each agent's name to be {NAME_EXPECTED}, got {show(name)}")
    return agents


def _checked_host(hosts: tuple[str, ...]) -> tuple[str, ...]:
    _check(all(re.fullmatch(r"(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", host) for host in hosts))
    return hosts


def _described(description: str, **constraints: Any) -> Any:
    return Field(description=description, **constraints)


type_text = "a text that is not empty"
Count = Annotated[int, _described("an integer of at least 1", ge=1, le=MAX_RUNS)]
Tokens = Annotated[int, _described("an integer of at least 1", ge=1)]
Seconds = Annotated[float, _described("a number of seconds above 0", gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
Dollars = Annotated[float, _described("an amount in dollars above 0", gt=0, allow_inf_nan=False)]
Text = Annotated[str, _described(type_text), AfterValidator(_checked_text)]
ModelName = Annotated[str, _described("a model's name"), AfterValidator(_checked_model)]
AgentName = Annotated[str, _described("an agent's name"), AfterValidator(_checked_name)]
Environment = Annotated[
    Mapping[str, str],
    _described('a table of variable names and strings, like { TIMEOUT_SEC = "1800" }'),
    AfterValidator(_checked_environment),
]
Profile = Literal["strict", "compat"]
"""How far a box is closed: `compat` lets an agent be root in it and install packages."""
BackendName = Annotated[Literal["docker", "modal", "local"], _described("one of docker, modal, local")]


class Model(BaseModel):
    """Frozen, strict about types, and no key goes unnoticed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Limits(Model):
    """What one sandbox may use."""

    cpus: Annotated[float, _described("a number of CPUs from 0.01 to 1024", ge=0.01, le=1024)] = 2.0
    memory_mb: Annotated[int, _described("an integer from 32 to 16777216, in megabytes", ge=32, le=16777216)] = 4096
    pids: Annotated[int, _described("an integer from 16 to 4194304", ge=16, le=4194304)] = 512
    disk_mb: Annotated[int, _described("an integer from 16 to 16777216, in megabytes", ge=16, le=16777216)] = 10240
    """What it may write, and the largest single file."""


class Network(Model):
    """What a sandbox may reach."""

    mode: Annotated[Literal["none", "gateway", "open"], _described("one of none, gateway, open")] = "gateway"
    allow: Annotated[
        tuple[str, ...], _described("a list of host names"), AfterValidator(_checked_host), Field(strict=False)
    ] = ()


class Budget(Model):
    """What runs may spend; None is no limit."""

    max_cost_usd_per_run: Dollars | None = None
    max_cost_usd: Dollars | None = None
    max_tokens_per_run: Tokens | None = None


class AgentTable(Model):
    """An agent of the user's own: a shell command line, run in the repository."""

    command: Text
    env: Annotated[
        tuple[str, ...],
        _described("a list of names of environment variables"),
        AfterValidator(_checked_env_names),
        Field(strict=False),
    ] = ()
    install: Text | None = None


class DockerSettings(Model):
    """Settings of the docker backend."""

    base_image: Annotated[str, _described("the name of an image"), AfterValidator(_checked_text)] = DEFAULT_BASE_IMAGE


class JudgeSettings(Model):
    """The model that judges rubrics which no test covers, and where it is served."""

    model: ModelName
    base_url: Annotated[
        str, _described("an address that begins with http:// or https://"), AfterValidator(_checked_base_url)
    ] = "https://api.openai.com/v1"
    """Where an OpenAI-compatible API begins; `/chat/completions` is added."""
    api_key_env: Annotated[
        str, _described('the name of an environment variable, or "" for no key'), AfterValidator(_checked_env_name)
    ] = "OPENAI_API_KEY"
    timeout_s: Seconds = 120.0
    """For one request, from its start to the last byte of the answer."""
    retries: Annotated[int, _described("an integer from 0 to 10", ge=0, le=10)] = 3


class TaskEntry(Model):
    """One `[[tasks]]` table: a task or a glob of tasks, the models to try, how often and with what."""

    prepared_dir: Annotated[str, _described("the path of a task folder, or a glob"), AfterValidator(_checked_text)]
    model: ModelName | None = None
    models: Annotated[
        tuple[ModelName, ...] | None,
        _described("a list of one or more models' names", min_length=1),
        Field(strict=False),
    ] = None
    agent: AgentName | None = None
    command: Text | None = None
    """What the agent `command` runs."""
    replay: Text | None = None
    """The recorded patch that the agent `replay` applies: a patch file, or a run's directory."""
    rollouts: Count = 1
    timeout_s: Seconds | None = None
    apply_overrides: Annotated[bool, _described("true or false")] = True
    overrides: Annotated[str, _described("the path of a JSON file"), AfterValidator(_checked_text)] | None = None
    environment_variables: Environment = Field(default_factory=dict)

    @field_validator("models")
    @classmethod
    def _one_model_once(cls, models: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        _check(models is None or info.data.get("model") is None, "give model or models, not both")
        _check(models is None or len(set(models)) == len(models), f"the same model twice, got {show(models)}")
        return models


class Benchmark(Model):
    """A benchmark file, checked."""

    name: Annotated[str, _described(f"{NAME_EXPECTED} and is not temp"), AfterValidator(_checked_benchmark_name)]
    parallel: Annotated[int, _described("an integer of at least 1", ge=1, le=4096)] = 1
    backend: BackendName = "docker"
    agent: AgentName | None = None
    command: Text | None = None
    timeout_s: Seconds = 1800.0
    """Wall clock for the agent alone; starting the sandbox has its own limit."""
    retries: Annotated[int, _described("an integer from 0 to 20", ge=0, le=20)] = 2
    pass_threshold: Annotated[float, _described("a number from 0 to 1", ge=0, le=1)] = 1.0
    min_free_disk_mb: Annotated[int, _described("an integer of at least 0, in megabytes", ge=0, le=2**40)] = 1024
    """Below this much room on a disk that runs write to no run is started; 0 is no such floor."""
    profile: Annotated[Profile, _described("strict or compat")] = "strict"
    limits: Limits = Limits()
    network: Network = Network()
    budget: Budget = Budget()
    docker: DockerSettings = DockerSettings()
    judge: JudgeSettings | None = None
    agents: Annotated[
        Mapping[str, AgentTable], _described("tables [agents.NAME]"), AfterValidator(_checked_agent_names)
    ] = Field(default_factory=dict)
    tasks: Annotated[
        tuple[TaskEntry, ...], _described("one or more [[tasks]] tables", min_length=1), Field(strict=False)
    ]

    def agent_of(self, entry: TaskEntry, model: str | None) -> str:
        """Who tries: the entry's agent, else the file's, else the one that the model's name implies."""
        chosen = entry.agent or self.agent
        if chosen is None and model in MODELLESS_AGENTS:
            chosen = model
        if chosen is None and model is not None:
            chosen = next((agent for start, agent in _IMPLIED_AGENTS if model.lower().startswith(start)), None)
        return chosen or DEFAULT_AGENT

    def models_of(self, entry: TaskEntry) -> tuple[str, ...]:
        """The models an entry tries; for an agent that calls none, the agent's name."""
        if entry.models or entry.model:
            return entry.models or (entry.model or "",)
        return (self.agent_of(entry, None),)

    def needs_model(self, agent: str) -> bool:
        """Whether that agent cannot do without a model's name."""
        own = self.agents.get(agent)
        return "{model}" in own.command if own else agent not in MODELLESS_AGENTS


def load_benchmark(path: Path) -> Benchmark:
    """Read and check a benchmark file; raise one `ConfigError` with every mistake in it."""
    data = _parse_toml(path)
    data.setdefault("name", path.stem)
    try:
        return Benchmark.model_validate(data)
    except ValidationError as exc:
        raise ConfigError(*(f"{path}: {line}" for line in mistakes(exc, Benchmark))) from None


def _parse_toml(path: Path) -> dict[str, Any]:
    text = read_text(path, "a benchmark file")
    if _key_cost(text) > MAX_KEY_COST:
        raise ConfigError(f"{path}: nested more than {MAX_DEPTH} deep")
    try:
        data = tomli.loads(text)
    except tomli.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not valid TOML: {exc}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested more than {MAX_DEPTH} deep") from None
    except ValueError as exc:  # a number of thousands of digits
        raise ConfigError(f"{path}: not valid TOML: {exc}") from None
    if deeper_than(data, MAX_DEPTH):
        raise ConfigError(f"{path}: nested more than {MAX_DEPTH} deep")
    return data


def _key_cost(text: str) -> int:
    """About how many steps the parser takes for dotted keys. Texts with dots in values count little by this."""
    cost = header = 0
    for part in re.split(r"[\n,{]", text):
        key, equals, _ = part.partition("=")
        dots = key.count(".")
        if equals:
            cost += (header + dots) * (dots + 1)
        elif part.lstrip().startswith("["):
            header = dots
            cost += dots
    return cost


def choose_backend(option: str | None, environ: Mapping[str, str], benchmark: Benchmark) -> str:
    """`--backend` beats `$SANDBOX_BACKEND` beats the file."""
    for source, value in (("--backend", option), ("$SANDBOX_BACKEND", environ.get("SANDBOX_BACKEND"))):
        if value:
            if value not in BACKENDS:
                close = did_you_mean(value, BACKENDS)
                raise ConfigError(f"{source}: expected one of {', '.join(BACKENDS)}, got {show(value)}{close}")
            return value
    return benchmark.backend


def choose_docker_settings(environ: Mapping[str, str], settings: DockerSettings) -> DockerSettings:
    """`$ROLLOUTS_BASE_IMAGE` stands in for the default base image; a file that names one wins."""
    image = environ.get("ROLLOUTS_BASE_IMAGE")
    if image and "base_image" not in settings.model_fields_set:
        return DockerSettings(base_image=image)
    return settings


def safe_relative(text: str) -> PurePosixPath | None:
    """`text` as a path below some folder, or None when it is absolute, empty or climbs out of it."""
    path = PurePosixPath(text)
    if not text or "\0" in text or path.is_absolute() or ".." in path.parts or not path.parts or "\\" in text:
        return None
    return None if ".git" in (part.lower() for part in path.parts) else path


def find_path(text: str, beside: Path) -> Path:
    """A path a file names: relative to the current directory, else to that file's own folder."""
    path = Path(text)
    if path.is_absolute() or path.exists() or not (beside / path).exists():
        return path
    return Path(os.path.relpath(beside / path))
