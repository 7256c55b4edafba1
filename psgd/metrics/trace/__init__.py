"""When each rank computed, pushed, waited: spans of time in a ring of events, merged into one Chrome trace.

Begin with `run_trace.py`; `event_ring.py` holds a rank's events, `span.py` says what is timed, `clock_offsets.py`
measures how far the ranks' clocks are apart, `alignment.py` corrects for it, `chrome.py` writes the file.
"""
