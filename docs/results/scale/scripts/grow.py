"""A row a run of mastery: seconds, peak memory, greedy. Usage: grow.py CORE MAP STEPS SEED [OPTIONS...]"""
import sys, subprocess, resource, time, csv, glob, os
core, map_, steps, seed, *more = sys.argv[1:]
out = f".{os.path.basename(map_)}-{steps}-{seed}-{'-'.join(more).replace('/','_')}"
t = time.time()
subprocess.run(["taskset", "-c", core, "..venv/bin/python", "-m", "benchmarks", "mastery", "--map", map_, "--total-steps", steps, "--seed", seed, "--threads", "1", "--eval-freq", steps, "--most-goals", "5000", "--final-episodes", "1", "--no-progress-bar", "--output", out, *more], check=True, cwd=".", env={**os.environ, "PYTHONPATH": ".", "OMP_NUM_THREADS": "1"})
(f,) = glob.glob(out + "/*/summary.csv")
row = next(csv.DictReader(open(f)))
curve = list(csv.DictReader(open(os.path.dirname(f) + "/mastery.csv")))
new = not os.path.exists("..csv")
with open("..csv", "a") as g:
    w = csv.writer(g)
    if new: w.writerow("map,agent,steps,seed,reachable,known,greedy,epsilon,plan,training_seconds,wall_seconds,peak_mb".split(","))
    w.writerow([os.path.basename(map_), row["agent"], steps, seed, row["reachable"], row["known"], row["greedy"], row["epsilon"], row["plan"], curve[-1]["training_seconds"], round(time.time() - t), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024])
