"""Reads a user's own tasks from folders of JSON lines."""
