import sys,json,numpy as np,torch as th,time
th.set_num_threads(1)
from benchmarks.worlds import World
from sb3_manygoals import ManyGoalsDQN, evaluate_mastery
w=World("TwoRoomsSwitch-v0","mansion"); m=ManyGoalsDQN.load(sys.argv[1]); n=int(sys.argv[2])
mdp=w.make().unwrapped.mdp; states=np.random.default_rng(11).choice(mdp.n_states,n,replace=False); goals=mdp.observe(states)
for eps in (0.,.1):
    t=time.time(); r=evaluate_mastery(m,w.vector(min(n,1000)),goals,max_steps=400,epsilon=eps); print(json.dumps(dict(epsilon=eps,goals=n,rate=r.rate,interval=r.interval,seconds=round(time.time()-t))),flush=True)
