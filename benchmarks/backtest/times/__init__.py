"""Test the model of step times against published measurements of other engines.

engines/     what a foreign engine computes and communicates, item by item, as data: formulas of sizes.
engine       a description and a run's sizes, as kernels and collectives; their seconds by stratlab_spec.step_time.
tables       the published rows as cases: which calibrate, which are judged, by rules that stand there.
fitting      at most a few scalars of a machine, from the calibration rows only.
scores       errors, order of pairs, regret of a recommendation, coverage of the printed band.
"""
