"""The layers' arithmetic: matrix products, bias and ReLU, windows of convolutions, pooling, the loss.

Each function takes NumPy's or CuPy's arrays; `by_device` finds its twin in `psgd.kernels.device.layers`. Nothing here
knows a layer, a model or a parameter's name: that is `psgd.nn`. May import what lies in `psgd.kernels` beside it, not
`codecs` or `memory`. Numba is loaded by the first call that needs it. Begin with `activation`.
"""
