"""Reading back what a backend wrote."""
