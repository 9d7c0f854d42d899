"""What the instruments cost, as ratios to hand-written floors: ``python -m benchmarks``.

Times are CPU seconds of one thread, ours and the floor in turn; memory is measured in a process of
its own. The run ends with 1 if anything is over its target.
"""
