"""Pairs to train on: records, their held-out part, contrastive batches."""
