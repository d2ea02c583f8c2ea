"""Test the memory model against published measurements of other engines.

engines/        a foreign engine's memory, item by item, as data: read in its sources, without fitting.
data/           the published measurements.
engine          reads such a description.
decoder         shapes, layouts, stages of a pipeline.
counts          turns a description into an operations file, as the trainer writes one of its own engines.
simumax, nanotron    rows of the two sources.
judging         errors against the bars.
report          the page and the JSON file.

`stratlab predict` answers from the operations file: its extrapolation, its device.
"""
