"""What happened in a run: counters, the log of events, who waited for whom.

May import `runtime`. Begin with `run_metrics.py`.
"""

from psgd.metrics.run_metrics import RunMetrics

__all__ = ["RunMetrics"]
