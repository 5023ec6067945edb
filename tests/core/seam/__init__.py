"""What lox changes in JAX: nothing on import, little on use, and nothing for programs without marks."""
