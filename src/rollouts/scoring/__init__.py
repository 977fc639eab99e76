"""From a run's patch to its score."""
