"""diff.patch → Evaluation: a patch put into a fresh box, tested there, and judged by what came of it."""
