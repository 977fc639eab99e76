"""README, CONTRIBUTING and docs/ say what the code does: keys, defaults, options, variables, exit codes, modules.

What the commands in them do is tested in `tests/e2e/test_docs_commands.py`.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import tomli
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rollouts.agents import AGENTS
from rollouts.cli import app
from rollouts.config import AgentTable, Benchmark, TaskEntry
from rollouts.errors import ExitCode
from rollouts.results import RunResult, Stage, Status
from rollouts.task_folder import Meta, Overrides
from tests.documents import CHECKOUT, DOCUMENTS, anchors, blocks, code_in, links, section, sections, text_of

REFERENCE, TASK_FORMAT = "docs/config-reference.md", "docs/task-format.md"
LANGUAGES = {"bash", "text", "toml", "json"}
"""What blocks may be: bash is run by the end-to-end tests, text is output or a picture."""
NOTHING = "none"


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models somewhere within a type."""
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def shown_default(field: FieldInfo) -> str:
    """A default as a table shows it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel):
        return NOTHING
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple | Mapping):
        assert not value
        return "`[]`" if isinstance(value, tuple) else "`{}`"
    return f"`{value}`"


PARTIAL = ("repo", "evaluation")
"""Tables of overrides.json that take any keys of the same table of tb_meta.json; those are listed there alone."""


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a JSON file, with dots and `[]`, and its default. A table of keys is not listed itself."""
    for name, field in model.model_fields.items():
        if model is Overrides and name in PARTIAL:
            yield name, "`{}`"
            continue
        inner, is_list = models_in(field.annotation), get_origin(field.annotation) is tuple
        if is_list or not inner:
            yield prefix + name, shown_default(field)
        for each in inner:
            yield from keys_of(each, f"{prefix}{name}{'[]' if is_list else ''}.")


def documented(document: str, heading: str) -> dict[str, str]:
    """Key → default, as the table under that heading has them."""
    return {code_in(row[0])[0]: row[2] for row in section(document, heading).rows}


CONFIG_TABLES: dict[str, type[BaseModel]] = {
    "Top level": Benchmark,
    "`[[tasks]]`": TaskEntry,
    "`[agents.NAME]`": AgentTable,
    **{
        f"`[{name}]`": model
        for name, field in Benchmark.model_fields.items()
        if name not in ("tasks", "agents")
        for model in models_in(field.annotation)
    },
}


@pytest.mark.parametrize("heading", CONFIG_TABLES)
def test_the_config_reference_has_every_key_with_its_default_and_no_other(heading: str) -> None:
    expected = {name: shown_default(field) for name, field in CONFIG_TABLES[heading].model_fields.items()}
    if heading == "Top level":
        expected["name"] = "the file's stem"  # filled in before the model sees the file
    assert documented(REFERENCE, heading) == expected


def test_no_table_of_the_benchmark_file_is_missing_in_the_reference() -> None:
    named = {each.heading for each in sections(REFERENCE) if re.fullmatch(r"`\[.*\]`", each.heading)}
    assert named | {"Top level"} == set(CONFIG_TABLES)
    in_tables = {model for model in CONFIG_TABLES.values() if model is not Benchmark}
    assert {model for field in Benchmark.model_fields.values() for model in models_in(field.annotation)} == in_tables


@pytest.mark.parametrize(("heading", "model"), [("tb_meta.json", Meta), ("overrides.json", Overrides)])
def test_the_task_format_has_every_key_with_its_default_and_no_other(heading: str, model: type[BaseModel]) -> None:
    assert documented(TASK_FORMAT, heading) == dict(keys_of(model))


@pytest.mark.parametrize("name", PARTIAL)
def test_tables_that_overrides_take_in_part_are_those_of_the_description(name: str) -> None:
    assert Overrides.model_fields[name].annotation is Meta.model_fields[name].annotation
    assert Overrides().model_dump()[name] == Meta(task_id="t").model_dump()[name]
    assert not getattr(Overrides(), name).model_fields_set
    said = {code_in(row[0])[0]: row[3] for row in section(TASK_FORMAT, "overrides.json").rows}
    assert said[name] == f"Keys of `{name}`, each in place of the task's."


def test_the_exit_code_table_agrees_with_the_program() -> None:
    assert [int(row[0]) for row in section(REFERENCE, "Exit codes").rows] == [int(code) for code in ExitCode]


def test_every_status_stage_and_result_key_is_explained() -> None:
    rows = section(REFERENCE, "Files").rows
    first = [name for row in rows for name in code_in(row[0])]
    assert set(Status) <= set(first)
    assert set(RunResult.__dataclass_fields__) <= set(first)
    assert set(Stage) <= {name for row in rows for name in code_in(row[1])}


def test_every_agent_is_explained_and_no_other() -> None:
    named = [row[0] for row in section(REFERENCE, "Agents").rows if len(row) == 3]
    assert {name for cell in named for name in code_in(cell)} == set(AGENTS)


def test_every_command_and_option_is_in_the_reference() -> None:
    rows = {row[0]: row for row in section(REFERENCE, "Commands and options").rows}
    commands = {code_in(cell)[0].split()[0]: set(code_in(row[2])) for cell, row in rows.items() if len(row) == 3}
    explained = {code.split()[0] for cell, row in rows.items() if len(row) == 2 for code in code_in(cell)}
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    expected = {
        name: {max(each.opts, key=len) for each in command.params if each.opts[0].startswith("-")}
        for name, command in group.commands.items()
    }
    assert commands == expected
    own = {max(each.opts, key=len) for each in group.params}
    assert explained == {"-v", "-h", "--help", *own, *(option for options in expected.values() for option in options)}


def source_text() -> str:
    """Everything in which a variable may be read or set."""
    files = [*(CHECKOUT / "src").rglob("*.py"), *(CHECKOUT / "scripts").iterdir(), *(CHECKOUT / "sandbox").iterdir()]
    return "".join(path.read_text() for path in [*files, CHECKOUT / ".ci/engine"] if path.is_file())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_variable_of_ours_that_is_named_exists(document: str) -> None:
    named = set(re.findall(r"\bROLLOUTS_[A-Z_]+", text_of(document)))
    assert named <= set(re.findall(r"\bROLLOUTS_[A-Z_]+", source_text()))


def test_every_variable_of_ours_in_the_package_is_in_the_reference() -> None:
    used = set().union(*(re.findall(r"\bROLLOUTS_[A-Z_]+", path.read_text()) for path in package()))
    assert used == set(re.findall(r"`(ROLLOUTS_[A-Z_]+)`", text_of(REFERENCE)))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_relative_link_leads_somewhere(document: str) -> None:
    for target in links(document):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        linked = (CHECKOUT / document).parent / path if path else CHECKOUT / document
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(str(linked.resolve().relative_to(CHECKOUT))), target


def test_every_document_can_be_reached_from_the_readme() -> None:
    assert set(DOCUMENTS) - {"README.md"} <= {re.sub(r"#.*", "", link) for link in links("README.md")}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_blocks_are_of_a_kind_that_is_checked(document: str) -> None:
    assert {block.language for block in blocks(document)} <= LANGUAGES


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_in_toml_and_json_are_accepted(document: str) -> None:
    for block in blocks(document):
        if block.language == "toml":
            data = tomli.loads(block.text)
            Benchmark.model_validate({"name": "example", **data})
        elif block.language == "json":
            model = Meta if "task_id" in block.text else Overrides
            model.model_validate_json(block.text)


def package() -> list[Path]:
    """The program's modules."""
    return sorted((CHECKOUT / "src/rollouts").rglob("*.py"))


def imports_of(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports, as paths in the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rollouts"):
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "rollouts" else [node.module]
            )
            yield from (f"{name}".removeprefix("rollouts.").replace(".", "/") for name in names)


def test_the_architecture_lists_every_module_below_what_it_imports() -> None:
    rows = section("docs/architecture.md", "Modules").rows
    rank = {name: number for number, row in enumerate(rows) for name in code_in(row[0])}

    def rank_of(module: str) -> int | None:
        names = (f"{module}.py", f"{module}/__init__.py", f"{module.partition('/')[0]}/")
        return next((rank[name] for name in names if name in rank), None)

    for path in package():
        module = str(path.relative_to(CHECKOUT / "src/rollouts").with_suffix("")).removesuffix("/__init__")
        if module == "__init__":
            continue
        own = rank_of(module)
        assert own is not None, f"{module} is not in the table"
        for imported in imports_of(path):
            assert (rank_of(imported) or 0) <= own, f"{module} imports {imported}"
