"""Fully sharded data parallelism: each rank keeps a part of the parameters, gradients and the optimizer's state.

Begin with `slices`: what part a rank keeps. `units` says what is gathered at once, `exchange` moves it.
"""
