"""What may follow an answer so far: guesses that the model checks, several in one pass."""
