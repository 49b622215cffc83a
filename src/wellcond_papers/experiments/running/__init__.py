"""Where cells run and are kept: tasks in, records on disk out; in this process, in local processes or on Ray."""
