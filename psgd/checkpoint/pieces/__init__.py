"""Checkpoints of a model in pieces: each rank saves its own, and a run that is cut otherwise takes what it needs.

A piece is what the ranks at one place along the model's axes have: `pipe1tensor0`. Its shards are called so, as in
`pipe1tensor0worker-3`, and the manifest has each piece's layout: which parts of which parameters lie where. All pieces
make one checkpoint, which is complete when all shards are on the disk.

Workers that share vectors (`psgd.strategies.sharded`) save their ranges of them, of a piece or of a whole model; whose
file has which ranges is in the manifest.

Begin with `model_part.py`, what a run knows of its pieces; `rearranged.py` reads a checkpoint through another layout,
`overlaps.py` says what is copied for that, `parts.py` which rank has what. `own_ranges.py` is what a worker saves and
reads of a shared vector, `stored.py` finds any range of it in the files; `lazy_tensors.py` and `assembled.py` see to it
that no rank reads more than it needs.
"""
