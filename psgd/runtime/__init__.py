"""What every rank needs to know of the others: who is who, what all agree on, and how all end together.

Owns the mesh of ranks and the placement of servers, agreement between ranks, the alarm that tells all ranks of an
error, ending a job when a rank fails, injected faults, the launcher's environment, keyed random numbers, and checks of
single arguments. May import `psgd.collectives` and `psgd.kernels` only. Begin with `mesh.py`.
"""
