"""Other people's frameworks on Holdfast: one module for each, which needs that framework and says so if it is missing."""
