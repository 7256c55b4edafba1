"""More layers: over a sample's steps in time, of transformers, and with random numbers.

Owns `lstm`, `dropout`, `embedding`, `layernorm`, `gelu` and `attention`. May import what `psgd.nn`'s other layers may.
Begin with `gelu`, the shortest, then `dropout`.
"""
