"""Each strategy tuned by short runs before the runs that are compared.

knobs       which strategy has which, and what is wrong with those in the file
candidates  a combination of knobs as a release
search      which candidate comes next, which one won: one knob at a time
tuning_loop the loop: runs the candidates, has them measured, until every search has ended
tuning_record what is kept of it, beside the runs of the comparison
"""
