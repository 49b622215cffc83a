"""Where jobs are run: jobs in, how each ended out; in this process, in others on this machine, or on Ray."""
