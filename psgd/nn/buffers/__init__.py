"""Buffers of a context that several layers use one after the other.

Owns what hands them out (`pooled`), and contexts without a backward pass (`forward_only`). Begin with `pooled`. May
import what `psgd.nn`'s layers may.
"""
