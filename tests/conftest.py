import torch as th

# The suite runs in several processes on few cores: more threads than cores make torch many times slower.
th.set_num_threads(1)
