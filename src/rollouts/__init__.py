"""Run coding agents many times in sandboxes, keep their patches, and compare models honestly.

Importing this package does no work and loads nothing heavy: `import rollouts` is safe in any script.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
