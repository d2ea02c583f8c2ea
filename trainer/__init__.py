"""The program that runs on the GPUs: one loop, one data order, one measurement for every strategy."""
