"""Sharding of a model in pieces: each stage, or each rank's part of the layers, is shared by its copies.

Begin with `sharded_pipeline.py`, a pipeline whose stages are so. `piece_exchange.py` moves units in the order in which
a schedule's passes use them, which `turns.py` plans; `stage_units.py` is one stage's view of that, `sharded_chunk.py`
leaves out microbatches that a small batch does not have.
"""
