"""The tasks of mteb: selection, prompts, local mirrors, scores, estimates."""
