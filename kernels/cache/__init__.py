"""Machine code on disk: compiled once, by one process, and read where nobody else could have written it.

`code_store` has the files, `code_cache` what Numba's compiled functions keep in them, and `notices` the lines that are
said of it. Imports nothing of psgd; `code_cache` loads numba. Begin with `code_store`.
"""
