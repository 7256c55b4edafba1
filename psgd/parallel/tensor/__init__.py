"""Layers cut over the ranks of a `tensor` axis, which see the same samples.

Owns the vocabulary of how an array lies on the ranks (`layouts`), the collectives between them (`convert`), the layers
that are cut (`cut_linear`), and the choice of cuts for a list of layers (`plan`). It imports
`psgd.nn` and `psgd.collectives`, and knows nothing of stages, data or optimizers. Begin with `layouts`, then `plan`.
"""
