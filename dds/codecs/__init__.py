"""Samples and their bytes."""
