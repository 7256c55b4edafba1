"""Layers that tell when a pass comes to them and has left them, for parameters that come and go meanwhile.

Owns the layer that does so (`gated`), binding a stage's layers to memory of their own (`apart`), and passes of single
layers as CUDA graphs (`recorded`, with what layers keep for the next pass in `left_behind`). Begin with `gated`. May
import what `psgd.nn`'s layers may.
"""
