#!/usr/bin/env python3
"""Becomes another program, for launchers that start Python files only:

    python -m torch.distributed.launch --nproc-per-node=4 launch_program.py ./train --batch 8

They put --local-rank=N before everything else; it goes on to the program, which takes it out by
oslo::drop_local_rank(argc, argv)."""
import os
import sys

launchers = [word for word in sys.argv[1:2] if word.startswith(("--local-rank=", "--local_rank="))]
program, *arguments = sys.argv[1 + len(launchers):]
os.execvp(program, [program, *launchers, *arguments])
