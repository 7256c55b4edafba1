"""What everyone here needs of MPI and of the operating system; `psgd` uses it too, for messages of its own.

Owns message tags, waits that starve nobody, what every wait advances (`watchdog`), agreement between ranks on errors
(`agreement`), the ranks of a node and memory that they share, cutting arrays into ranges, environment variables,
freeing requests that cannot end, and the count of bytes that a collective must move.

May import `psgd.kernels` and mpi4py only. Begin with `wait.py`: tests and waits are what all other rooms are made of.
"""
