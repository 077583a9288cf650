from base import *
from routes import collect
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order
N=int(sys.argv[1]) if len(sys.argv)>1 else 20000
old=np.load("goals.npy"); rng=np.random.default_rng(1)
new=rng.permutation(np.setdiff1d(np.arange(S),old))[:N-3000]
goals=np.concatenate([old[:2500],new,old[2500:3000]])  # last 500 are never told
src=np.repeat(np.arange(S),5); dst=NEXT.ravel(); k=src!=dst
g=csr_array((np.ones(k.sum()),(dst[k],src[k])),shape=(S,S)); g.sum_duplicates()
D=np.lib.format.open_memmap("D20.npy","w+",np.uint8,(N,S)); D=np.full((N,S),255,np.uint8)
t=time.time()
for i,s0 in enumerate(goals):
    o,p=breadth_first_order(g,int(s0)); place=np.empty(S,np.int64); place[o]=np.arange(len(o)); after=place[p[o[1:]]]
    v=D[i]; v[s0]=0; b,e,n=1,1+int(np.searchsorted(after,1)),1
    while b<e: v[o[b:e]]=n; b,e,n=e,1+int(np.searchsorted(after,e)),n+1
    if i%2000==0: print(i,time.time()-t,time.process_time(),flush=True)
np.save("D20.npy",D); np.save("goals20.npy",goals)
rng=np.random.default_rng(0)
gi=np.repeat(np.arange(N-500),4); R=collect(D,goals,gi,120,.15,rng,every=3).reshape(N-500,-1); np.save("routes20.npy",R); print(R.shape,time.time()-t,flush=True)
gi=np.arange(N); R=collect(D,goals,gi,40,0.,rng,every=7)[:,10:]; np.save("test_routes20.npy",R); print(R.shape,time.time()-t)
