"""Pipelines that are never empty: PipeDream, whose ranks take optimizer steps without waiting for each other.

Begin with `without_flushes.py`; `stash.py` keeps the older weights that passes under way still need.
"""
