from base import *
rng=np.random.default_rng(0)
goals=rng.choice(S,3000,replace=False); t=time.time(); D=bfs(goals[:100]); print("100 bfs", time.time()-t, D.max(), D.mean(), (D==255).sum())
t=time.time(); D=bfs(goals); np.save("goals.npy",goals); np.save("D.npy",D); print(time.time()-t, D.nbytes/1e6)
# upper bound by the BFS policy
e=np.arange(500); starts=rng.integers(S,size=500)
def pol(s,i):
    d=D[e[i][:,None],NEXT[s]].astype(int); d=d+np.random.default_rng(1).random(d.shape)*.1
    return d.argmin(1)
ok,steps=rollout(pol,goals[:500],starts,400); print("bfs policy", ok.mean(), np.percentile(steps[ok],[50,90,99,99.9]))
