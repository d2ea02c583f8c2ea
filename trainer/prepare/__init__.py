"""Put a data set, a model or a token cache onto the results volume, once: `python -m trainer.prepare --help`.

    <results>/_prepared/<name>/              the complete data with DONE.json
    <results>/_prepared/.<name>.locks/1      the process at work; its modification time is the heartbeat
    <results>/_prepared/.<name>.partial-*/   work in progress: one rename turns `data` into the folder above

The rename separates concurrent starts: the later one finds that the folder exists. The lock only avoids double work.
"""
