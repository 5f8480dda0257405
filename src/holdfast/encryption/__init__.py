"""Encryption at rest: what is stored is sealed by the log, below everything users touch and above every backend.

Three kinds of keys, each protected by the one before it:

- **your key** (a file, a passphrase, KMS, a function: `holdfast.keys`) wraps the master key; it is used once, when a store is opened;
- a **master key**, random, one per store, kept wrapped in the store's ring (`_ring`); it wraps data keys;
- a **data key** for each stream, and for each subject of memories (`_data_keys`); it seals records (`_cipher`).

So a new key for the store rewraps data keys and rewrites no record (`_rotation`), and whoever destroys a data key destroys what
was sealed with it, wherever copies of the records may be (`_erasure`).
"""
