"""The page of a recorded run: what it shows (`page`), what its scripts draw (`data`), and the scripts themselves."""
