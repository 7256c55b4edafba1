"""The arithmetic on flat arrays: update rules, sums, losses, the layers' mathematics.

Each function has one meaning and may have several devices: the host's is in the module that is named for it, its twin
for GPUs in the module of the same name under `device`, and `by_device` chooses. Rooms: `layers` (what `psgd.nn` calls),
`memory` (words that processes share), `codecs` (compressed updates), `device`, `cache` (compiled code on disk). Kernels
import nothing of psgd but kernels. Importing this package loads neither numba nor cupy; import the module that you need
(`psgd.kernels.update`, `psgd.kernels.layers.loss`, ...). Begin with `accumulate`, then `jit` and `by_device`.
"""
