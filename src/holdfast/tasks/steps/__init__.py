"""Steps: declaring, matching and running them, their progress, model input, usage and replies."""
