"""Layers that go through a sample's steps in time one after another.

Owns `lstm`. May import what `psgd.nn`'s other layers may. Begin there.
"""
