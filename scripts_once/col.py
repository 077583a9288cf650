import sys,time,cProfile,pstats,numpy as np,torch as th
th.set_num_threads(1)
from benchmarks.worlds import World
from sb3_manygoals import ManyGoalsDQN, GoalBuffer, LARGE
n=int(sys.argv[1]); N=int(float(sys.argv[2]))
w=World("TwoRoomsSwitch-v0",sys.argv[3]); env=w.make_many(n,0)
m=ManyGoalsDQN("CnnPolicy",env,seed=0,device="cpu",**LARGE,goal_wrapper_kwargs={"goal_buffer":GoalBuffer(w.space,200_000)})
p=cProfile.Profile() if len(sys.argv)>4 else None
t=time.process_time()
if p: p.enable()
m.learn(N,log_interval=10**9)
if p: p.disable()
print(n,sys.argv[3],round(N/(time.process_time()-t)),"steps/s of CPU, goals",len(m.goal_buffer))
if p: pstats.Stats(p).sort_stats("tottime").print_stats(25)
