"""(state, goal) pairs of oracle routes with noise eps, true dynamics; per told goal K states -> routes.npy [G,K]; and held-out test pairs without noise"""
from base import *
def oracle(D,s,gi,rng):
    d=D[gi[:,None],NEXT[s]].astype(np.float32); return (d+rng.random(d.shape)*.5).argmin(1)
def collect(D,goals,gi,K,eps,rng,T=4000,every=1,slack=.0):
    """walkers with goal gi each; restart on success; K states each"""
    s=rng.integers(S,size=len(gi)); out=np.empty((len(gi),K),np.int32)
    t=0; 
    for k in range(K):
        out[:,k]=s
        for _ in range(every):
            act=oracle(D,s,gi,rng)
            if eps>0:
                # bursts of noise: each walker acts at random with probability eps
                m=rng.random(len(s))<eps; act[m]=rng.integers(5,size=m.sum())
            s=step(s,act,rng); ok=s==goals[gi]; s[ok]=rng.integers(S,size=ok.sum())
    return out
if __name__=="__main__":
    t=time.time(); rng=np.random.default_rng(0); D=np.load("D.npy"); goals=np.load("goals.npy")
    gi=np.repeat(np.arange(2500),8); R=collect(D,goals,gi,120,.15,rng,every=3); R=R.reshape(2500,-1); np.save("routes.npy",R); print(R.shape,time.time()-t,time.process_time())
    gi=np.arange(3000); R=collect(D,goals,gi,40,0.,rng,every=7); R=R[:,10:]; np.save("test_routes.npy",R); print(R.shape,time.time()-t,time.process_time())
