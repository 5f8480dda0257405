"""Encryption at rest: the log encrypts records before any backend sees them.

There are three kinds of keys, each protected by the one before it:

- **your key** (a file, a passphrase, KMS, a function: `holdfast.keys`) wraps the master key; it is
  used once, when a store is opened;
- a random **master key** per store, stored wrapped in the store's keyring (`keyring`), wraps data
  keys;
- a **data key** per stream, and per subject of memories (`data_keys`), encrypts records (`cipher`).

So rotating your key re-wraps the data keys and rewrites no record (`rotation`). Destroying a data
key makes all records under it unreadable, in every copy that has no copy of the key
(`holdfast.admin.erasure`).
"""
