"""Test the memory model against published measurements of other engines.

engines/        a foreign engine's memory, item by item, as data: read in its sources, without fitting.
foreign.toml    which of our settings stand for a foreign engine, and what differs, row by row of its table.
data/           the published measurements.
counts          turns a description of engines/ into an operations file, as the trainer writes one of its own engines.
simumax, nanotron    rows of the two sources, with bars.
matrices        tables that name the runs that fit: a confusion matrix of each, without a bar.
report          the page, the rows and the JSON file.

`stratlab predict` answers from the operations file: its extrapolation, its device.
"""
