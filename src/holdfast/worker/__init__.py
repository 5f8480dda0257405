"""Workers: poll for due tasks and run them."""
