"""The table of agents. It holds strings, so that an adapter is loaded only when it is used."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from rollouts.agents.base import Agent
from rollouts.agents.command import Command
from rollouts.config import Benchmark, TaskEntry
from rollouts.mistakes import did_you_mean, show

AGENTS = {
    "oracle": "rollouts.agents.oracle:Oracle",
    "nop": "rollouts.agents.nop:Nop",
    "replay": "rollouts.agents.replay:Replay",
    "command": "rollouts.agents.command:Command",
}


def open_agent(name: str, benchmark: Benchmark) -> Agent:
    """The agent of that name; a table of the benchmark's own wins over a built-in."""
    if name in benchmark.agents:
        return Command(benchmark.agents[name])
    module, _, attribute = AGENTS[name].partition(":")
    agent: type[Agent] = getattr(import_module(module), attribute)
    return agent()


def secrets_of(benchmark: Benchmark, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values that a benchmark's agents and its judge are given by name: what no file and no screen may show."""
    used = {benchmark.agent_of(entry, model) for entry in benchmark.tasks for model in benchmark.models_of(entry)}
    names = [benchmark.judge.api_key_env] if benchmark.judge else []
    for agent in sorted({*benchmark.agents, *(used & set(AGENTS))}):
        names += open_agent(agent, benchmark).env_names
    values = [environ[name] for name in names if name in environ]
    return tuple(dict.fromkeys(value for held in values for value in (held, held.strip())))


def agent_mistakes(benchmark: Benchmark) -> list[str]:
    """What is wrong with the agents that a benchmark names, and with what its entries give them; a line each."""
    found: dict[str, None] = {}
    for index, entry in enumerate(benchmark.tasks):
        for model in entry.models or (entry.model,):
            found.update(dict.fromkeys(_entry_mistakes(benchmark, entry, model, f"tasks[{index}]")))
    return list(found)


def _entry_mistakes(benchmark: Benchmark, entry: TaskEntry, model: str | None, where: str) -> Iterator[str]:
    agent, known = benchmark.agent_of(entry, model), sorted({*AGENTS, *benchmark.agents})
    if agent not in known:
        if not (entry.agent or benchmark.agent):
            implied = f"for the model {show(model)} it would be {agent}, which this version does not have"
            yield f"agent: missing; {implied}; there are {', '.join(known)}"
            return
        key = f"{where}.agent" if entry.agent else "agent"
        close = did_you_mean(agent, known) or f"; there are {', '.join(known)}"
        yield f"{key}: no such agent, got {show(agent)}{close}"
        return
    built_in = agent not in benchmark.agents
    if model is None and benchmark.needs_model(agent):
        yield f"{where}.model: missing; expected a model's name for the agent {agent}"
    if agent == "command" and built_in and not (entry.command or benchmark.command):
        yield f'{where}.command: missing; expected the shell command that the agent "command" runs'
    if agent == "replay" and built_in and not entry.replay:
        yield f'{where}.replay: missing; expected the recorded patch, or the run, that the agent "replay" applies'
    if entry.command and agent != "command":
        yield f'{where}.command: goes with agent = "command" only'
    if entry.replay and agent != "replay":
        yield f'{where}.replay: goes with agent = "replay" only'
