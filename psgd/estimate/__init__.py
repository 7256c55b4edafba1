"""How much memory each rank of a run needs, before anything is started.

`activations.py` counts a model's buffers without making them. `strategy_vectors.py` says how many vectors of the
parameters' size a strategy has. `rank_memory.py` puts a run's options together. `verdict.py` says whether that fits,
and if not, which batch would; `whole_run.py`, which options would. `lecture.py` has two sums that are taught, for
comparison. Begin with `whole_run.py`, then `rank_memory.py`. May import `strategies`, `config` and the rooms below.
"""
