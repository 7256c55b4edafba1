"""The models by name: each is one file that puts layers together; `psgd.nn.catalog` lists them.

May import the layers of `psgd.nn`. Begin with `mlp.py`.
"""
