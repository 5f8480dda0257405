"""The resume context: the text that a model reads when an interrupted task resumes."""
