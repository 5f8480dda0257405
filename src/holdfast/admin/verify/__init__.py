"""Verify the hash chains, heads and blobs of a store: `store.verify`."""
