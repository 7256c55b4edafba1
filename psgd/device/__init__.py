"""Training on a GPU. Nothing here is imported before a run or a device array asks for it.

`computer.py` makes gradients, `samples.py` has the data for it, `losses.py` what it leaves unread. `staged.py` joins
parameters on a GPU to a strategy that works on the host, `easgd.py` to a centre there. `server.py` has update rules of
servers whose state is on a GPU. Strategies that work on device arrays themselves need none of it.
"""
