"""The event log: appends, reads, operations on streams, the codec, leases and ids."""
