"""Tables and pictures of results: plain text, terminal, one-file HTML, matplotlib. Nothing here computes."""
