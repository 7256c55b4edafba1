"""`psgd bench gpt2`: the GPT-2 of 1.56 billion parameters that is taught, sharded, beside PyTorch's FSDP2.

Begin with `command.py`; `ranks.py` has what psgd does, `expected.py` the estimate, `fsdp.py` PyTorch's side.
"""
