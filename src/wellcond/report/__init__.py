"""Tables and plots made from rows: terminal and one-file HTML."""
