"""Speed as ratios to one plain gradient of the same model, in the same process, on one thread."""
