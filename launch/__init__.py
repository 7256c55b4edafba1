"""The `psgd` command: launcher, benchmarks, doctor, plots."""
