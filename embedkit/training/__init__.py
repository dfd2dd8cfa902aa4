"""Training loop, checkpoints, metrics and run folders of any loss. Imports recipe/ downward."""
