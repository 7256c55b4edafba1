"""Wrong names of commands and options, answered with the right ones.

Begin with `groups.py`; `synonyms.py` knows what other programs call an option. May import nothing of psgd.
"""
