"""Contextual batches by k-means, as tables that data/ reads. Imports data/, models/ downward."""
