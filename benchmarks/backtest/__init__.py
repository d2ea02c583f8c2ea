"""What the lab's model of memory says of runs that others have measured, against what they have measured.

engines/        what a foreign engine holds, item by item, as data: read in its sources, fitted to nothing
data/           the published measurements
engine          reads such a description
decoder         shapes, layouts, stages of a pipeline
counts          a description becomes an operations file, as the trainer writes one of its own engines
simumax, nanotron    rows of the two sources
judging         errors against the bars
report          the page and the JSON file

From the operations file on it is `stratlab predict` that answers: its extrapolation, its device.
"""
