"""More layers: over a sample's steps in time, and with random numbers.

Owns `lstm` and `dropout`. May import what `psgd.nn`'s other layers may. Begin with `dropout`, the shorter one.
"""
