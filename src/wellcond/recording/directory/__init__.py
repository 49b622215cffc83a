"""The folder that a run is recorded in: Parquet files, a JSON manifest and findings, readable without this library.

    runs/a/
      run.json         manifest: version of the layout, model, optimizer, budget, bound on the size, status, lives
      rows/            000001-000064.parquet, 000065-000065.parquet, …: time, step, layer, quantity, value, unit
      findings.jsonl   one line for each beginning or end of a finding, and where more is known of it
      run.lock         locked while a process writes; its text says which one

`pandas.read_parquet("runs/a/rows")`, `polars.read_parquet("runs/a/rows/*.parquet")` and DuckDB's
`'runs/a/rows/*.parquet'` read the rows. `time` is in seconds since 1970 and never goes back within a life, whatever the
clock does. A file is named after the first and the last append that it holds. (step, layer, quantity) is unique.

**Whole files.** A file gets its name when it is complete. No reader sees half of one, and a writer that is killed at
any moment loses at most the append that it was at. A power cut may also take what the system had not yet written, by
default the last half minute: readers skip such files and name them. A merged file and the manifest are on the disk
(fsync) before what they replace goes, on a thread of its own; an append does not wait for the disk.

**Merging.** An append writes a small file; when small ones add up, they are merged into one that covers their numbers,
and then removed. A process that dies in between leaves both: `read_run` reads the covering one, and the next writer
removes the others. No file system replaces several files at once, so a reader that does not know this has a moment (a
fraction of a millisecond, once in about fifteen appends) in which it may list rows twice, or list a file that is gone
when it opens it: read again, or drop duplicates of (step, layer, quantity). It misses no rows where a folder of some
hundred files is listed in one go, as on Linux.

**Bound.** The folder stays below `max_bytes` (256 MiB by default, which is 30 to 60 million rows), temporary files
included, as long as no single append takes a sixteenth of it. When rows come near the bound, the older ones are
thinned, a few files after each append: of every series, except those with few rows, every second step is dropped. This
is repeated where steps are still densest, so that the older part of a run keeps an even spacing, which doubles as the
run gets longer, and the newest quarter is complete. The first numbers and the last one of every series stay.
Findings have a sixteenth of the bound: beyond that they lose their rows, and then those that ended long ago go.
"""
