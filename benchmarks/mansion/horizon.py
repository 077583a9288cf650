from base import *
from gym_twoRooms.oracle import transition_matrices
P=[m.tocsr().astype(np.float32) for m in transition_matrices(mdp)]
rng=np.random.default_rng(3); gs=rng.choice(S,32,replace=False); u=np.zeros((S,32),np.float32); u[gs,np.arange(32)]=1
for h in range(1,600):
    v=P[0]@u
    for p in P[1:]: np.maximum(v,p@u,out=v)
    v[gs,np.arange(32)]=1; u=v
    if h%10==0:
        m=u.mean()
        if m>.9: print(h,m,np.quantile(u.min(0),.5),flush=True)
        if m>=.9995: break
