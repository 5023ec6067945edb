"""All that lox takes from JAX's internals, and all that it changes there."""
