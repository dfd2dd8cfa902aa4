"""Pretraining runs, from recipe to model. Imports everything below but finetuning/."""
