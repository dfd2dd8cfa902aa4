"""Rows as they come: files, the hub, packages, shards, joins of tables."""
