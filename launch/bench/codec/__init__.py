"""`psgd bench codec`: the codecs of compressed updates. Begin with `command.py`."""
