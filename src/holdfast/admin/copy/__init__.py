"""Copy a store to any other backend: `holdfast.copy`."""
