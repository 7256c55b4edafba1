"""Checkpoints of a model in pieces: each rank saves its own, and a run that is cut otherwise takes what it needs.

A piece is what the ranks at one place along the model's axes have: `pipe1tensor0`. Its shards are called so, as in
`pipe1tensor0worker-3`, and the manifest has each piece's layout: which parts of which parameters lie where. All pieces
make one checkpoint, which is complete when all shards are on the disk.

Begin with `model_part.py`, what a run knows of its pieces; `rearranged.py` reads a checkpoint through another layout,
`overlaps.py` says what is copied for that, `parts.py` which rank has what.
"""
