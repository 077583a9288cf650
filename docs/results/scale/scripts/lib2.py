"""ManyGoalsDQN on mansion, with times of its parts."""
from stable_baselines3.common.utils import LinearSchedule
import sys,time,json,numpy as np,torch as th
th.set_num_threads(1)
from benchmarks.worlds import World
from sb3_manygoals import ManyGoalsDQN, GoalBuffer
a=json.loads(sys.argv[1])
w=World("TwoRoomsSwitch-v0",a.get("map","mansion")); env=w.make_many(a.get("n_envs",64),0)
tk={"max_plan_bytes":2**28,"sweeps":24,**a.get("targets",{})}
m=ManyGoalsDQN("CnnPolicy",env,seed=0,device="cpu",learning_starts=a.get("starts",1000),learning_rate=LinearSchedule(a.get("lr",1e-3),0.,1.),buffer_size=a.get("buffer",5_000_000),updates_per_step=a["ups"],batch_size=a.get("S",128),goal_batch_size=a.get("G",128),target_kwargs=tk,policy_kwargs=a.get("pk",{}),target_class=__import__("sb3_manygoals").PlannedTargets,replay_buffer_kwargs={"as_numbers":True} if a.get("numbers") else None,goal_wrapper_kwargs={"goal_buffer":GoalBuffer(w.space,200_000)})
t0=time.time(); c0=time.process_time()
T={}
def timed(o,n):
    f=getattr(o,n)
    def g(*x,**k):
        t=time.process_time(); r=f(*x,**k); T.setdefault(n,[0,0]); T[n][0]+=1; T[n][1]+=time.process_time()-t; return r
    setattr(o,n,g)
for n in ("refresh","rotate","action_values"): timed(m.targets.plan,n)
timed(m.targets.routes,"draw"); timed(m.targets.exploration,"refresh"); timed(m,"_update")
last=[0]; kept=[0]
def keep():
    th.save(m.policy.state_dict(),a["save"]+".tmp"); __import__("os").replace(a["save"]+".tmp",a["save"])

def cb(l,g):
    if m._n_updates and m.num_timesteps-last[0]>=a.get("every",200_000):
        last[0]=m.num_timesteps; print(m.num_timesteps,"lr",round(m.policy.optimizer.param_groups[0]["lr"],6),"goals",len(m.goal_buffer),"cpu",round(time.process_time()-c0,1),"wall",round(time.time()-t0,1),"updates",m._n_updates,"loss",float(m._loss),{k:(v[0],round(v[1],2)) for k,v in T.items()},flush=True)
    if m._n_updates-kept[0]>=a.get('keep',3000): kept[0]=m._n_updates; keep()
    return True
m.learn(a["steps"],cb)
keep()
from sb3_manygoals import evaluate_mastery
mdp=w.make().unwrapped.mdp; states=np.random.default_rng(11).choice(mdp.n_states,a.get("n",5000),replace=False); goals=mdp.observe(states)
print("trained",round(time.process_time()-c0),"CPU s",round(time.time()-t0),"s",m._n_updates,"updates, rotated",m.targets.plan._n_drawn,"peak MB",__import__("resource").getrusage(0).ru_maxrss//1024,flush=True)
for eps in (0.,.1):
    t=time.time(); r=evaluate_mastery(m,w.vector(min(len(goals),1000)),goals,max_steps=400,epsilon=eps); print(json.dumps(dict(epsilon=eps,goals=len(goals),rate=r.rate,interval=r.interval,seconds=round(time.time()-t))),flush=True)
