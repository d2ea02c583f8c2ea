"""The comparisons that the lab was built for: a folder each, ready to install and with a result to read (README.md).

catalogue      the folders: which experiments there are, of which parts
differences    in what a small form may differ from its full form
network        two nodes with a slow link: predicted and measured (no sweep)
prepared       what lies on the volume, for the full forms and for the small ones
small_images   data sets of images, small and in their source's format
small_models   weights, small and in their source's format
small_texts    questions and answers, small and in their source's format
result         what a run of a small form has left, judged and kept
"""
