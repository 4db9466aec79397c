"""Batches in, a run directory out. So far: the loss over a vocabulary."""
