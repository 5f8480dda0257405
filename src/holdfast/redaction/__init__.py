"""Find and replace secrets in text and values. `holdfast.redact` is the public part."""
