"""`psgd bench train`: training runs beside PyTorch's. Begin with `command.py`."""
