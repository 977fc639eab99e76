"""Benchmark files: what they may say, what is assumed, and how mistakes are told."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.config import (
    DEFAULT_BASE_IMAGE,
    NAME_EXPECTED,
    Benchmark,
    DockerSettings,
    JudgeSettings,
    choose_backend,
    choose_docker_settings,
    find_path,
    is_name,
    load_benchmark,
    safe_relative,
)
from rollouts.errors import ConfigError, ExitCode
from tests.samples import make_benchmark

SMALL = '[[tasks]]\nprepared_dir = "t"\nmodel = "gpt-4"\n'
FULL = """
name = "my_benchmark"
parallel = 4
backend = "local"
agent = "codex"
timeout_s = 900
retries = 3
pass_threshold = 0.5
min_free_disk_mb = 0
profile = "compat"

[limits]
cpus = 1.5
memory_mb = 2048
pids = 100
disk_mb = 200

[network]
mode = "none"
allow = ["pypi.org", "*.example.com"]

[budget]
max_cost_usd_per_run = 2.0
max_cost_usd = 50
max_tokens_per_run = 2_000_000

[docker]
base_image = "debian:12"

[agents.my-agent]
command = "my-agent --model {model} --file {instructions}"
env = ["MY_API_KEY"]
install = "pip install my-agent==1.2"

[[tasks]]
prepared_dir = "data/tasks/prepared/task_1"
model = "gpt-4"
rollouts = 3
apply_overrides = false
overrides = "x.json"
environment_variables = { TIMEOUT_SEC = "1800", TOKEN_LIMIT = "100" }

[[tasks]]
prepared_dir = "data/tasks/prepared/*"
models = ["gpt-4", "claude-3-sonnet"]
agent = "my-agent"
timeout_s = 60.5
"""


def load(folder: Path, text: str, name: str = "bench.toml") -> Benchmark:
    (folder / name).write_text(text)
    return load_benchmark(folder / name)


def mistakes_of(folder: Path, text: str) -> list[str]:
    """The mistakes of a file, without its name in front."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    start = f"{folder / 'bench.toml'}: "
    assert all(line.startswith(start) for line in caught.value.mistakes)
    assert str(caught.value) == "\n".join(caught.value.mistakes)
    assert caught.value.exit_code == ExitCode.USAGE
    return [line.removeprefix(start) for line in caught.value.mistakes]


def test_every_key_is_read(tmp_path: Path) -> None:
    found = load(tmp_path, FULL).model_dump()
    assert {key: found[key] for key in ("name", "parallel", "backend", "agent", "timeout_s", "retries")} == {
        "name": "my_benchmark", "parallel": 4, "backend": "local", "agent": "codex", "timeout_s": 900.0, "retries": 3,
    }  # fmt: skip
    assert (found["pass_threshold"], found["min_free_disk_mb"], found["profile"]) == (0.5, 0, "compat")
    assert found["limits"] == {"cpus": 1.5, "memory_mb": 2048, "pids": 100, "disk_mb": 200}
    assert found["network"] == {"mode": "none", "allow": ("pypi.org", "*.example.com")}
    assert found["budget"] == {"max_cost_usd_per_run": 2.0, "max_cost_usd": 50.0, "max_tokens_per_run": 2_000_000}
    assert found["docker"] == {"base_image": "debian:12"}
    assert found["agents"]["my-agent"] == {
        "command": "my-agent --model {model} --file {instructions}",
        "env": ("MY_API_KEY",),
        "install": "pip install my-agent==1.2",
    }
    first, second = found["tasks"]
    assert first["prepared_dir"] == "data/tasks/prepared/task_1"
    assert (first["model"], first["rollouts"], first["apply_overrides"]) == ("gpt-4", 3, False)
    assert first["overrides"] == "x.json"
    assert first["environment_variables"] == {"TIMEOUT_SEC": "1800", "TOKEN_LIMIT": "100"}
    assert (second["models"], second["agent"], second["timeout_s"]) == (("gpt-4", "claude-3-sonnet"), "my-agent", 60.5)


def test_what_is_not_said_has_the_documented_defaults(tmp_path: Path) -> None:
    found = load(tmp_path, SMALL, "nightly.toml")
    assert (found.name, found.parallel, found.backend, found.agent) == ("nightly", 1, "docker", None)
    assert (found.timeout_s, found.retries, found.pass_threshold) == (1800.0, 2, 1.0)
    assert (found.min_free_disk_mb, found.profile) == (1024, "strict")
    assert found.limits.model_dump() == {"cpus": 2.0, "memory_mb": 4096, "pids": 512, "disk_mb": 10240}
    assert found.network.model_dump() == {"mode": "gateway", "allow": ()}
    assert set(found.budget.model_dump().values()) == {None}
    assert found.docker.base_image == DEFAULT_BASE_IMAGE
    entry = found.tasks[0]
    assert (entry.rollouts, entry.apply_overrides, entry.overrides, entry.timeout_s) == (1, True, None, None)
    assert entry.environment_variables == {}


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = """
name = "has space"
paralel = 4
backend = "podman"
retries = -1
[limits]
cpu = 2
memory_mb = "4g"
[network]
mode = "closed"
[[tasks]]
prepared_dir = "t"
model = "gpt-4"
rollouts = "three"
[[tasks]]
model = 5
apply_overrides = "yes"
"""
    found = mistakes_of(tmp_path, text)
    assert sorted(found) == sorted([
        f'name: expected {NAME_EXPECTED} and is not temp, got "has space"',
        "paralel: unknown key; did you mean parallel?",
        'backend: expected one of docker, modal, local, got "podman"',
        "retries: expected an integer from 0 to 20, got -1",
        "limits.cpu: unknown key; did you mean limits.cpus?",
        'limits.memory_mb: expected an integer from 32 to 16777216, in megabytes, got "4g"',
        'network.mode: expected one of none, gateway, open, got "closed"',
        'tasks[0].rollouts: expected an integer of at least 1, got "three"',
        "tasks[1].prepared_dir: missing; expected the path of a task folder, or a glob",
        "tasks[1].model: expected a model's name, got 5",
        'tasks[1].apply_overrides: expected true or false, got "yes"',
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("parallel = 0", "parallel: expected an integer of at least 1, got 0"),
        ("parallel = true", "parallel: expected an integer of at least 1, got true"),
        ("parallel = 2.0", "parallel: expected an integer of at least 1, got 2.0"),
        ('parallel = "2"', 'parallel: expected an integer of at least 1, got "2"'),
        ("timeout_s = 0", "timeout_s: expected a number of seconds above 0, got 0"),
        ("timeout_s = nan", "timeout_s: expected a number of seconds above 0, got NaN"),
        ("timeout_s = inf", "timeout_s: expected a number of seconds above 0, got Infinity"),
        ("pass_threshold = 1.5", "pass_threshold: expected a number from 0 to 1, got 1.5"),
        ('name = "temp"', "name: expected a name of"),
        ('name = "../up"', "name: expected a name of"),
        ('name = ".hidden"', "name: expected a name of"),
        ('name = ""', "name: expected a name of"),
        ('agent = "a/b"', 'agent: expected an agent\'s name, got "a/b"'),
        ("limits = 3", "limits: expected a table, got 3"),
        ('network = { allow = ["http://x"] }', 'network.allow: expected a list of host names, got ["http://x"]'),
        ('network = { allow = "x" }', 'network.allow: expected a list of host names, got "x"'),
        ("budget = { max_cost_usd = 0 }", "budget.max_cost_usd: expected an amount in dollars above 0, got 0"),
        (
            "budget = { max_tokens_per_run = -5 }",
            "budget.max_tokens_per_run: expected an integer of at least 1, got -5",
        ),
        ('agents = { x = { command = " " } }', 'agents.x.command: expected a text that is not empty, got " "'),
        ("agents = { x = {} }", "agents.x.command: missing; expected a text that is not empty"),
        ('agents = { x = { command = "c", env = ["1X"] } }', "agents.x.env: expected a list of names of environment"),
        ("tasks = []", "tasks: expected one or more [[tasks]] tables, got []"),
        ("judge = {}", "judge.model: missing; expected a model's name"),
        ('judge = { model = "m", retries = 11 }', "judge.retries: expected an integer from 0 to 10, got 11"),
        ('judge = { model = "m", api_key_env = "sk-1" }', "judge.api_key_env: expected the name of an environment"),
        ('docker = { base_image = "" }', 'docker.base_image: expected the name of an image, got ""'),
    ],
)
def test_a_bad_value_is_told_with_key_and_expectation(line: str, said: str, tmp_path: Path) -> None:
    text = line if line.startswith("tasks") else f"{line}\n{SMALL}"
    found = mistakes_of(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(said)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('model = "m"\nmodels = ["n"]', "tasks[0].models: give model or models, not both"),
        ("models = []", "tasks[0].models: expected a list of one or more models' names, got []"),
        ('models = ["m", 3]', "tasks[0].models[1]: expected a model's name, got 3"),
        ('models = ["m", "m"]', 'tasks[0].models: the same model twice, got ["m", "m"]'),
        ('model = "a\\u001bb"', "tasks[0].model: expected a model's name, got"),
        ('model = ""', "tasks[0].model: expected a model's name, got"),
        ('model = "m"\nrollouts = 0', "tasks[0].rollouts: expected an integer of at least 1, got 0"),
        ('model = "m"\ntimeout_s = -1', "tasks[0].timeout_s: expected a number of seconds above 0, got -1"),
        ('model = "m"\nenvironment_variables = { X = 1 }', "tasks[0].environment_variables.X: expected a table of"),
        ('model = "m"\nenvironment_variables = { "a b" = "1" }', "tasks[0].environment_variables: expected a table of"),
        (
            'model = "m"\nenvironment_variables = { "A" = "\\u0000" }',
            "tasks[0].environment_variables: expected a table",
        ),
    ],
)
def test_a_bad_entry_is_told_with_its_number(entry: str, said: str, tmp_path: Path) -> None:
    found = mistakes_of(tmp_path, f'[[tasks]]\nprepared_dir = "t"\n{entry}\n')
    assert len(found) == 1
    assert found[0].startswith(said)


@pytest.mark.parametrize("value", ["soon", "0", "-5", "nan", "inf", "1e400", "", "99999999999"])
def test_a_bad_timeout_variable_is_told(value: str, tmp_path: Path) -> None:
    found = mistakes_of(tmp_path, f'{SMALL}environment_variables = {{ TIMEOUT_SEC = "{value}" }}')
    expected = "expected TIMEOUT_SEC to be a string that holds seconds above 0, at most 2592000"
    assert found == [f'tasks[0].environment_variables: {expected}, got "{value}"']


@pytest.mark.parametrize("value", ["many", "0", "1.5", "nan", "inf"])
def test_a_bad_token_limit_is_told(value: str, tmp_path: Path) -> None:
    found = mistakes_of(tmp_path, f'{SMALL}environment_variables = {{ TOKEN_LIMIT = "{value}" }}')
    expected = "expected TOKEN_LIMIT to be a string that holds a whole number above 0"
    assert found == [f'tasks[0].environment_variables: {expected}, got "{value}"']


def test_a_value_above_its_limit_is_told_with_the_limit(tmp_path: Path) -> None:
    assert mistakes_of(tmp_path, f"parallel = 5000\n{SMALL}rollouts = 1000000") == [
        "parallel: expected an integer of at least 1 and at most 4096, got 5000",
        "tasks[0].rollouts: expected an integer of at least 1 and at most 100000, got 1000000",
    ]


def test_an_agents_table_needs_a_proper_name(tmp_path: Path) -> None:
    found = mistakes_of(tmp_path, f'[agents."../x"]\ncommand = "c"\n{SMALL}')
    assert found == [f'agents: expected each agent\'s name to be {NAME_EXPECTED}, got "../x"']


def test_mistakes_between_keys_are_told_with_all_others(tmp_path: Path) -> None:
    text = """
backend = "dokcer"
parallel = 0
[network]
mode = "gatway"
[agents."../x"]
command = "c"
[[tasks]]
prepared_dir = "t"
model = "m"
models = ["n"]
rollouts = 0
[[tasks]]
prepared_dir = "t"
models = ["m", "m"]
timeout_s = 0
"""
    assert sorted(mistakes_of(tmp_path, text)) == sorted([
        'backend: expected one of docker, modal, local, got "dokcer"; did you mean docker?',
        "parallel: expected an integer of at least 1, got 0",
        'network.mode: expected one of none, gateway, open, got "gatway"; did you mean gateway?',
        f'agents: expected each agent\'s name to be {NAME_EXPECTED}, got "../x"',
        "tasks[0].models: give model or models, not both",
        "tasks[0].rollouts: expected an integer of at least 1, got 0",
        'tasks[1].models: the same model twice, got ["m", "m"]',
        "tasks[1].timeout_s: expected a number of seconds above 0, got 0",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("key", "least", "most", "said"),
    [
        ("cpus", "0.01", "1024", "a number of CPUs from 0.01 to 1024"),
        ("memory_mb", "32", "16777216", "an integer from 32 to 16777216, in megabytes"),
        ("pids", "16", "4194304", "an integer from 16 to 4194304"),
        ("disk_mb", "16", "16777216", "an integer from 16 to 16777216, in megabytes"),
    ],
)
def test_limits_have_bounds_and_tell_them(key: str, least: str, most: str, said: str, tmp_path: Path) -> None:
    for value in (least, most):
        found = load(tmp_path, f"limits = {{ {key} = {value} }}\n{SMALL}").limits
        assert getattr(found, key) == float(value)
    below = "0.009" if key == "cpus" else str(int(least) - 1)
    for value in ("0", "-1", below, str(int(most) + 1), "inf", "nan", "true", '"1"', "9" * 30):
        shown = {"inf": "Infinity", "nan": "NaN"}.get(value, value)
        assert mistakes_of(tmp_path, f"limits = {{ {key} = {value} }}\n{SMALL}") == [
            f"limits.{key}: expected {said}, got {shown}"
        ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('profile = "loose"', 'profile: expected strict or compat, got "loose"'),
        ("min_free_disk_mb = -1", "min_free_disk_mb: expected an integer of at least 0, in megabytes, got -1"),
        ("min_free_disk_mb = 0.5", "min_free_disk_mb: expected an integer of at least 0, in megabytes, got 0.5"),
    ],
)
def test_what_no_box_could_be_made_with_is_told(line: str, said: str, tmp_path: Path) -> None:
    assert mistakes_of(tmp_path, f"{line}\n{SMALL}") == [said]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "bench.toml").write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load_benchmark(tmp_path / "bench.toml").tasks[0].model == "gpt-4"


def test_a_stem_that_is_no_name_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'name: expected a name of .* got "my bench"'):
        load(tmp_path, SMALL, "my bench.toml")


def test_broken_toml_is_told_with_line_and_column(tmp_path: Path) -> None:
    assert mistakes_of(tmp_path, 'name = "x"\nparallel = = 3\n') == [
        "not valid TOML: Invalid value (at line 2, column 12)"
    ]


def test_a_missing_file_is_told_with_a_guess(tmp_path: Path) -> None:
    (tmp_path / "hello.toml").write_text(SMALL)
    with pytest.raises(ConfigError) as caught:
        load_benchmark(tmp_path / "helo.toml")
    assert str(caught.value) == f"{tmp_path}/helo.toml: no such file; did you mean {tmp_path}/hello.toml?"


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{tmp_path}: is not a file$"):
        load_benchmark(tmp_path)


def test_bytes_that_are_no_text_are_told_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(ConfigError, match="not UTF-8 at byte 8"):
        load_benchmark(tmp_path / "x.toml")


BOMBS = {
    "arrays": "a = " + "[" * 10_000 + "]" * 10_000,
    "tables": "a = " + "{a=" * 5_000 + "1" + "}" * 5_000,
    "dots": ".".join("a" * 100_000) + " = 1",
    "unknown keys": "\n".join(f"parallel{n} = 1" for n in range(50_000)),
    "bad entries": '[[tasks]]\nfoo = "x"\n' * 40_000,
    "a long key": "a" * 1_000_000 + " = 1",
    "a long value": 'name = "' + "a" * 1_000_000 + '"',
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_within_a_second(bomb: str, tmp_path: Path) -> None:
    (tmp_path / "bench.toml").write_text(BOMBS[bomb])
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load_benchmark(tmp_path / "bench.toml")
    assert time.process_time() - began < 1.5  # a second of a machine that does nothing else
    assert len(caught.value.mistakes) <= 120


def test_a_file_of_100_mb_is_not_even_read(tmp_path: Path) -> None:
    with (tmp_path / "bench.toml").open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    began = time.process_time()
    with pytest.raises(ConfigError, match=r"may have at most 1,048,576 bytes, this has 104,857,600$"):
        load_benchmark(tmp_path / "bench.toml")
    assert time.process_time() - began < 0.1


def test_nesting_is_told(tmp_path: Path) -> None:
    assert mistakes_of(tmp_path, "a = " + "[" * 30 + "]" * 30) == ["nested more than 16 deep"]


def test_a_judge_has_defaults_and_none_is_there_unless_named(tmp_path: Path) -> None:
    assert load(tmp_path, SMALL).judge is None
    judge = load(tmp_path, f'judge = {{ model = "m", api_key_env = "" }}\n{SMALL}').judge
    assert judge == JudgeSettings(
        model="m", base_url="https://api.openai.com/v1", api_key_env="", timeout_s=120.0, retries=3
    )


@pytest.mark.parametrize("address", ["http://127.0.0.1:11434/v1", "https://[::1]:8/", "https://host.example/a/b"])
def test_a_judges_address_may_be_any_http_server(address: str, tmp_path: Path) -> None:
    judge = load(tmp_path, f'judge = {{ model = "m", base_url = "{address}" }}\n{SMALL}').judge
    assert judge is not None
    assert judge.base_url == address


NO_ADDRESSES = (
    *(
        "",
        "host/v1",
        "ftp://host",
        "http://",
        "http://:80",
        "http://[::1",
        "http://h:99999",
        "http://h:x",
        "http://h:0",
    ),
    *("http://h/a b", "http://h/?key=1", "http://h/#x", "http://h/\\n", "http://h\\u00e9"),
)


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_a_judges_address_that_is_none_is_told(address: str, tmp_path: Path) -> None:
    (found,) = mistakes_of(tmp_path, f'judge = {{ model = "m", base_url = "{address}" }}\n{SMALL}')
    assert found.startswith("judge.base_url: expected an address that begins with http:// or https://, got ")


def test_a_password_in_the_judges_address_is_refused_and_not_repeated(tmp_path: Path) -> None:
    found = mistakes_of(tmp_path, f'judge = {{ model = "m", base_url = "https://me:hunter2@h/v1" }}\n{SMALL}')
    assert found == ["judge.base_url: expected an address without user and password; a key goes by api_key_env"]


def test_a_benchmark_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        make_benchmark().parallel = 5  # type: ignore[misc]  # that it is frozen is the point


@pytest.mark.parametrize(
    ("file_agent", "entry", "model", "agent"),
    [
        (None, {}, "gpt-4", "codex"),
        (None, {}, "claude-3-sonnet", "claude-code"),
        (None, {}, "Claude-3", "claude-code"),
        (None, {}, "gemini-pro", "gemini-cli"),
        (None, {}, "oracle", "oracle"),
        ("mine", {}, "claude-3", "mine"),
        ("mine", {"agent": "other"}, "claude-3", "other"),
    ],
)
def test_the_agent_is_the_entrys_else_the_files_else_the_models(
    file_agent: str | None, entry: dict[str, Any], model: str, agent: str
) -> None:
    benchmark = make_benchmark(agent=file_agent, tasks=[{"prepared_dir": "t", "model": model, **entry}])
    assert benchmark.agent_of(benchmark.tasks[0], model) == agent


def test_an_agent_without_model_stands_in_its_place(tmp_path: Path) -> None:
    benchmark = load(tmp_path, 'agent = "nop"\n[[tasks]]\nprepared_dir = "t"\n')
    assert benchmark.models_of(benchmark.tasks[0]) == ("nop",)


def test_the_backend_is_the_options_else_the_environments_else_the_files() -> None:
    benchmark = make_benchmark(backend="modal")
    assert choose_backend("local", {"SANDBOX_BACKEND": "docker"}, benchmark) == "local"
    assert choose_backend(None, {"SANDBOX_BACKEND": "docker"}, benchmark) == "docker"
    assert choose_backend(None, {"SANDBOX_BACKEND": ""}, benchmark) == "modal"
    assert choose_backend(None, {}, benchmark) == "modal"


@pytest.mark.parametrize(("option", "source"), [("dokcer", "--backend"), (None, r"\$SANDBOX_BACKEND")])
def test_an_unknown_backend_is_told_with_its_source(option: str | None, source: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^{source}: expected one of docker, modal, local, got .*did you mean docker"
    ):
        choose_backend(option, {"SANDBOX_BACKEND": "dokcer"}, make_benchmark())


def test_a_base_image_of_the_file_beats_the_environments_beats_the_default() -> None:
    environ = {"ROLLOUTS_BASE_IMAGE": "mine"}
    assert choose_docker_settings({}, DockerSettings()).base_image == DEFAULT_BASE_IMAGE
    assert choose_docker_settings(environ, DockerSettings()).base_image == "mine"
    assert choose_docker_settings(environ, DockerSettings(base_image="file")).base_image == "file"
    assert (
        choose_docker_settings(environ, DockerSettings(base_image=DEFAULT_BASE_IMAGE)).base_image == DEFAULT_BASE_IMAGE
    )


@given(st.text(max_size=70))
def test_a_name_can_never_leave_its_folder(text: str) -> None:
    if is_name(text):
        assert Path("/data", text).parent == Path("/data")
        assert 1 <= len(text) <= 64
        assert text.isascii()
        assert text[0] not in ".-"


@pytest.mark.parametrize("text", ["", "/x", "../x", "a/../b", "..", ".", "a\0b", ".git", "a/.git/x", ".GIT", "a\\b"])
def test_paths_that_leave_are_not_safe(text: str) -> None:
    assert safe_relative(text) is None


@pytest.mark.parametrize("text", ["a", "a/b", "./a", "..a", ".gitignore", "a b/é"])
def test_paths_that_stay_are_safe(text: str) -> None:
    assert safe_relative(text) is not None


def test_paths_are_found_here_first_then_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "configs").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "configs/task").mkdir()
    assert find_path("task", tmp_path / "configs") == Path("../configs/task")
    (tmp_path / "here/task").mkdir()
    assert find_path("task", tmp_path / "configs") == Path("task")
    assert find_path("nowhere", tmp_path / "configs") == Path("nowhere")
    assert find_path("/abs", tmp_path / "configs") == Path("/abs")
