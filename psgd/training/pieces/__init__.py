"""One rank's part of a model in pieces, as a run trains it; `psgd.training.cut_model` makes it.

Begin with `model_in_pieces.py`, a part of a model of psgd's layers. `continuous_training.py` is one in a pipeline that
is never empty, whose stages take their steps apart, with a loop of its own. May import what `psgd.training` may, and of
its modules those that know of no pieces.
"""
