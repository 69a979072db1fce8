"""Fuzzers: seeded random damage of plans, update files and records. `python -m tools.fuzz`, or `make fuzz`."""
