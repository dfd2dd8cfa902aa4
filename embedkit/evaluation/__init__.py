"""Scores of models: mteb, task folders, pseudo-perplexity, comparison.

Imports data/, models/, training/ downward.
"""
