"""From text to ``TokenBatch``: tokenizer, vocabulary, prompts. Imports storage/ and below."""
