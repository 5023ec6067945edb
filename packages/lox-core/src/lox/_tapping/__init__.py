"""How ``lox.tap`` runs a program: ``tapper`` sends records, ``kept`` is what stays on the device, ``routes`` where records go."""
