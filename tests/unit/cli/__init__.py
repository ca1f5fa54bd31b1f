"""The command, against a fake gateway in a process of its own."""
