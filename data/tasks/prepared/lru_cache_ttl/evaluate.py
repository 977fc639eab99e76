"""Custom metrics of the solved repository, as JSON. Reads nothing but the working directory."""

import ast
import json
from pathlib import Path

PACKAGE = Path("lrucache")
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.BoolOp, ast.comprehension, ast.match_case)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def complexity(function: Function) -> int:
    """Cyclomatic complexity, nearly: one and one more for each branch."""
    return 1 + sum(isinstance(node, BRANCHES) for node in ast.walk(function))


def measure(sources: list[str]) -> dict[str, float | int]:
    functions = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    public = [function for function in functions if not function.name.startswith("_")]
    documented = [function for function in public if ast.get_docstring(function)]
    return {
        "code_lines": sum(1 for source in sources for line in source.splitlines() if line.strip()),
        "functions": len(functions),
        "max_complexity": max(map(complexity, functions), default=0),
        "documented_share": round(len(documented) / len(public), 3) if public else 1.0,
    }


def main() -> None:
    sources = [path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))]
    readme = Path("README.md")
    metrics: dict[str, float | int | bool] = {**measure(sources)}
    metrics["readme_mentions_ttl"] = readme.is_file() and "ttl" in readme.read_text(encoding="utf-8").lower()
    print(json.dumps(metrics, indent=2))


if __name__ == "__main__":
    main()
