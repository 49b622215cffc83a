"""The commands `wellcond reproduce` and `wellcond sweep`, found through the entry-point group `wellcond.commands`."""
