"""Text to pretrain on: documents, token stores, packing, masked batches."""
