"""`psgd plot`: pictures from the logs of training runs. Begin with `command.py`."""
