"""A model in, sequences out."""
