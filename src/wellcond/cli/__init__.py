"""The command line: one file per command. Each builds a problem, measures it, prints one result and saves it."""
