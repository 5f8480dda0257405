"""State documents, stored as keyframes and deltas: `State` and `AsyncState`."""
