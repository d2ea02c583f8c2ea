"""Whether a run will fit its devices, said before anything is started.

operations_file    what the trainer has counted (python -m trainer.count --operations), found by settings
operations/        the files that come with stratlab
extrapolation      a file's few counts become any depth, batch and number of ranks
device_memory      what a device holds besides, and the gate
prediction         one strategy: peak by cause, verdict, largest micro-batch
runs_to_try        runs to try where one does not fit, in their order
remedies           what to change first
asking             charts and settings become what is looked for
counting           the trainer counts what no file answers
conclusion         what to take first, or what to change
prediction_table, prediction_page    what a person reads
foretelling        one sentence, for the verbs that start runs
"""
