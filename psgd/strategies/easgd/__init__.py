"""Elastic averaging SGD: one worker, four orders in which workers exchange with the centre.

Begin with `easgd.py`, then `exchange_order.py` and the order that you need.
"""
