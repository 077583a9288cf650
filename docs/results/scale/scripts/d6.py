import sys,numpy as np,torch as th
th.set_num_threads(1); sys.path.insert(0,".")
from benchmarks.worlds import World
from sb3_manygoals import ManyGoalsDQN
w=World("TwoRoomsSwitch-v0","mansion"); m=ManyGoalsDQN("CnnPolicy",w.make_many(2,0),device="cpu",learning_starts=10,buffer_size=100)
m.policy.load_state_dict(th.load(sys.argv[1]))
D=np.load("D20.npy",mmap_mode="r"); TG=np.load("goals20.npy"); NG=len(TG); TR=np.load("test_routes20.npy"); mdp=w.make().unwrapped.mdp; NEXT=np.asarray(mdp.next_state)
tr=np.random.default_rng(7); i=tr.integers(NG-500,NG,size=4000); j=tr.integers(TR.shape[1],size=4000); s_=TR[i,j].astype(np.int64); mm=s_!=TG[i]; i,s_=i[mm],s_[mm]
dn=D[i[:,None],NEXT[s_]]; ok_=th.as_tensor(dn==dn.min(1,keepdims=True)); OS=th.as_tensor(mdp.observe(s_)); OG=th.as_tensor(mdp.observe(TG[i]))
for net in ("q_net_ema","q_net"):
    with th.no_grad(): q=th.cat([getattr(m.policy,net)(x,y) for x,y in zip(OS.split(500),OG.split(500))])
    ok=ok_.gather(1,q.argmax(1,keepdim=True)).float()[:,0]; d=th.as_tensor(D[i,s_].astype(np.int64))
    print(net,"accuracy untold",round(float(ok.mean()),4),[(lo,round(float(ok[(d>=lo)&(d<hi)].mean()),3)) for lo,hi in ((0,5),(5,15),(15,40),(40,80),(80,250))], "sq",round(float(((q.max(1).values)).mean()),3))
