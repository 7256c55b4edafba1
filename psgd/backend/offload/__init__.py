"""A GPU's gradients with vectors on the host: what crosses the bus, and when.

`bus.py` is the seam to the GPU. `kept_layers.py` has parameters and gradient on the GPU, `streamed_layers.py` two
layers of them. `arrivals.py` hands gradients over in order, `offloaded.py` is the backend. Begin with
`kept_layers.py`. May import what `psgd.backend` may.
"""
