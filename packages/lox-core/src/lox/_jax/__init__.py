"""Everything that lox uses of JAX's internals, and everything that it changes there."""
