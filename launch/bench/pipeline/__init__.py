"""`psgd bench pipeline`: a model in stages on several ranks against the same model on one of them.

Begin with `command.py`; `ranks.py` is what each rank does, `full_pipeline.py` where stages take steps apart.
"""
