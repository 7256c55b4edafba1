"""Kernels by which the GPUs of one host exchange and reduce arrays among themselves, without the host in between.

`common` says how a call begins, waits and ends; `one_shot`, `two_shot` and `pair` are the calls, `elements` what they
are compiled for, `launch` compiles and starts them. Begin with `common`.
"""
