"""The graph as tensors, how it is built from records, and the store of text embeddings."""
