"""Predict whether a run will fit its devices before anything is started.

    charts, or a model and GPUs ─▶ asking ─▶ answering ─▶ prediction ─▶ prediction_report
                                              │  counting: the trainer counts runs that no file answers
                                              └  advice: changes to try first

stratlab_spec/memory has operations files, the choice of the file that answers, and a device's memory, as in the
trainer's pods.
"""
