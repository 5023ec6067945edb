"""How records are kept on the device: rows, stores, and words that pack them."""
