"""Memory that several processes share: atomic words, cache lines, counters.

`atomic` has the instructions for compiled code, `words` two of them for Python, `cacheline` moves whole lines, and
`counters` is one line for each worker. Addresses are integers; who maps the memory is no matter here. May import
`psgd.kernels.jit` alone. Begin with `atomic`.
"""
