"""`psgd bench pushpull`: a push and a pull beside plain MPI and PyTorch's RPC. Begin with `command.py`."""
