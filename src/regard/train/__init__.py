"""Batches in, a run directory out: :func:`regard.train.loop.train`.

loop.py         the training step, and what keeps a run from losing anything
tasks.py        what a batch's loss is, scores on held-out data, samples
objectives.py   the loss over a vocabulary, a chunk at a time    kernels.py  its kernel for a GPU
optim.py        schedules and AdamW
loader.py       batches made ahead in a thread
checkpoint.py   what a run is resumed from        run.py    the run directory
distributed.py  one process or many               watch.py  what a person sees of it
plan.py         how large, how long, before anything runs
compiled.py     settings for torch.compile        memory.py what a step frees stays, on a CPU
verify.py       the proof that resuming changes nothing
"""
