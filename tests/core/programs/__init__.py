"""The programs that every law is tested on, by what they are about. ``tests.corpus`` collects them."""
