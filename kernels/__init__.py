"""The arithmetic on flat arrays: update rules, sums, losses, the layers' mathematics.

Each kernel has one meaning and may have several devices. Importing this package loads neither numba nor
cupy; import the module that you need (`psgd.kernels.update`, `psgd.kernels.loss`, ...).
"""
