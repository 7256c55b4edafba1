"""Activation checkpointing: activations that backward computes a second time instead of keeping them.

Owns the layer that does so (`recomputed`) and the choice of segments (`segments`). Begin with `recomputed`. May import
what `psgd.nn`'s layers may.
"""
