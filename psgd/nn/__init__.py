"""Layers with explicit forward and backward, and the stages and models made of them, on flat parameter vectors.

Owns what a layer is (`layer`), the layers themselves, where parameters lie in a vector (`layout`), layers in
sequence (`sequential`, `stage`), stages with a loss (`model`), and `models` by name; `catalog` lists both.
It knows nothing of ranks, data or optimizers, and may import `psgd.kernels` and the random generators alone; importing
it loads neither numba nor cupy. Begin with `layer`, then `linear`, `stage` and `model`.
"""
