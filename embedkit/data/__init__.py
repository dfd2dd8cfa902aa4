"""From files and the hub to batches.

Manifests, sources, pairs, text, samplers, batch tables. Imports recipe/ downward.
"""
