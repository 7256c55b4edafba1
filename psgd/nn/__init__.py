"""Layers with explicit forward and backward on flat parameter vectors."""
