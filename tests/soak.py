"""How much is tried: a short form with every `make test`, all of it with `make soak`."""

import os

FULL = os.environ.get("ROLLOUTS_SOAK") == "full"
