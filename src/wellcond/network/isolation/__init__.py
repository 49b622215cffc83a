"""Nothing of the user's changes: snapshots, copies, random generators, precision, all put back afterwards."""
