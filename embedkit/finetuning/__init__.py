"""Fine-tuning runs, from recipe to model card. Imports everything below but pretraining/."""
