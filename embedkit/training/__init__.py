"""The loop that knows no loss.

Steps, checkpoints, metrics, run folders. Imports recipe/ downward.
"""
