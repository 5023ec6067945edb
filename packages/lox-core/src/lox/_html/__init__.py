"""What a notebook shows: tables and curves as HTML that needs no script, no style sheet and nothing from outside."""
