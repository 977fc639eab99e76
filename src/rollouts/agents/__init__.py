"""The table of agents. It holds strings, so that an adapter is loaded only when it is used."""

from importlib import import_module

from rollouts.agents.base import Agent
from rollouts.agents.command import Command
from rollouts.config import Benchmark
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


def unknown_agents(benchmark: Benchmark) -> list[str]:
    """What is wrong with the agents that a benchmark names, a line each."""
    known = sorted({*AGENTS, *benchmark.agents})
    found = {}
    for index, entry in enumerate(benchmark.tasks):
        for model in benchmark.models_of(entry):
            name = benchmark.agent_of(entry, model)
            if name not in known:
                key = f"tasks[{index}].agent" if entry.agent else "agent"
                close = did_you_mean(name, known) or f"; there are {', '.join(known)}"
                found[key, name] = f"{key}: no such agent, got {show(name)}{close}"
    return list(found.values())
