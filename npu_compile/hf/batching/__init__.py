"""transformers' continuous batching with every layer on block tables."""
