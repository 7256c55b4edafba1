"""What a run prints, where, and what of it stays in files.

Owns the progress bar, the summary of the result, the files with what each rank prints, and the text streams between.
It knows nothing of how ranks are started, and may import `psgd.runtime`. Begin with `logs`.
"""
