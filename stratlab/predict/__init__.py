"""Whether a run will fit its devices, said before anything is started.

    charts, or a model and GPUs ─▶ asking ─▶ answering ─▶ prediction ─▶ prediction_report, prediction_screen
                                              │  counting: the trainer counts what no file answers
                                              └  remedies: what to change first

Operations files, which of them answers, and what a device holds: stratlab_spec/memory, as the trainer's pods have it.
"""
