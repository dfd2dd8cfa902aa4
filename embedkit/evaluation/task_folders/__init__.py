"""Tasks of a user's own, read from folders of JSON lines."""
