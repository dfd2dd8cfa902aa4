"""A pretraining run, put together by name. Imports everything below but finetuning/."""
