"""Puts a data set, a model or a token cache onto the results volume, once: `python -m trainer.prepare --help`.

    <results>/_prepared/<name>/              the data, whole, with DONE.json; there or not there
    <results>/_prepared/.<name>.locks/1      who is at work; its modification time is the heartbeat
    <results>/_prepared/.<name>.partial-*/   work in progress: `data` becomes the folder above by one rename

The rename is what keeps two starts apart: one of them finds the folder there. The lock only saves it the work.
"""
