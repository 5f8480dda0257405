"""Search by meaning: call the embedder, store vectors, find the nearest."""
