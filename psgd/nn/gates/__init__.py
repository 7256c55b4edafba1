"""Layers that tell when a pass comes to them and has left them, for parameters that come and go meanwhile.

Owns the layer that does so (`gated`), and binding a stage's layers to memory of their own (`apart`). Begin with
`gated`. May import what `psgd.nn`'s layers may.
"""
