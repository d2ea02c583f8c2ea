"""What a run will hold, said before its ranks start, from counts that were made beforehand; without torch.

operations_file    files of `python -m trainer.count --operations`, and which of them answers for a run
scaling            their few counts become a run's depth, micro-batch and number of ranks
memory             the forecast: peak by cause, on a device, and whether it fits
deviation          the forecast beside what the run has measured

The rules are those of `stratlab predict`, which has its own copy of the last three lines of arithmetic, because neither
program needs the other (tests/trainer/forecast holds them equal).
"""
