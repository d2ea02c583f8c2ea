"""Hundreds of steps of every strategy, in fp32 and bf16, from several seeds: do they learn what one process learns?"""
