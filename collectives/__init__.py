"""Moving flat arrays between ranks. Usable alone by any MPI program."""
