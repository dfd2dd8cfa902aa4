"""A fine-tuning run, put together by name. Imports everything below but pretraining/."""
