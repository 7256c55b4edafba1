"""Compressed updates: the options of a run, what is done to a gradient before it is encoded, and residuals.

The codecs themselves are in `psgd.kernels.codecs`. May import `runtime`, `checkpoint` and `optim`. Begin with
`options.py`.
"""
