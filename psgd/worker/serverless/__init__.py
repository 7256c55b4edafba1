"""What workers without servers share: rounds of those that keep pace, counters and checkpoints of those that do not.

Begin with `lockstep.py` and `free_running.py`, the two kinds of worker. Strategies build on one of them, or on the
parts: `status_rounds.py`, `checkpoint_votes.py`, `checkpoint_barrier.py`, `shared_parameters.py`.
"""
