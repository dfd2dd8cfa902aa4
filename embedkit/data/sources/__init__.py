"""Sources of rows: files, the hub, packages, shards, joins of tables."""
