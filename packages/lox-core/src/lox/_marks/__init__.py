"""What ``lox.log`` leaves in a traced program."""
