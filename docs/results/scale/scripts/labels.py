"""How right are most frequent outcomes and best actions, by random steps? Usage: d8.py"""
import sys,time,numpy as np
exec(open("base.py").read().replace(".","."))
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order
A=5; print("slip",mdp.slip_probability,"close",mdp.close_probability, "slipping states",mdp.slips.mean(),flush=True)
rng=np.random.default_rng(0); K=20000
TR=np.load("test_routes20.npy"); TG=np.load("goals20.npy"); D=np.load("D20.npy",mmap_mode="r"); print(TR.shape,TG.shape,D.shape)
keys=np.zeros(0,np.int64); cnt=np.zeros(0,np.int64)
def collect(n,mode):
    global keys,cnt
    out=[]; s=rng.integers(S,size=K)
    for t in range(n//K):
        if t%50==0: s=rng.integers(S,size=K)
        a=rng.integers(A,size=K); s2=step(s,a,rng); out.append((s*A+a)*S+s2); s=s2
    k=np.concatenate([keys,*out]); c=np.concatenate([cnt,np.ones(len(k)-len(keys),np.int64)])
    o=np.argsort(k,kind="stable"); k=k[o]; c=c[o]; first=np.flatnonzero(np.r_[True,k[1:]!=k[:-1]]); keys=k[first]; cnt=np.add.reduceat(c,first)
def report(name):
    pair=keys//S; o=np.lexsort((cnt,pair)); last=np.r_[pair[o][1:]!=pair[o][:-1],True]; like=np.full(S*A,-1); like[pair[o][last]]=keys[o][last]%S
    right=like==NEXT.ravel(); tried=like>=0; slip=np.repeat(mdp.slips,A)
    led=like.reshape(S,A); src=np.repeat(np.arange(S),A)[tried]; dst=like[tried]; k=src!=dst
    g=csr_array((np.ones(k.sum()),(dst[k],src[k])),shape=(S,S)); g.sum_duplicates()
    acc=[];own=[]
    for gi in range(len(TG)-300,len(TG)):
        goal=TG[gi]; o,p=breadth_first_order(g,goal); d=np.full(S+1,30000,np.int64); d[goal]=0
        place=np.empty(S,np.int64); place[o]=np.arange(len(o)); after=place[p[o[1:]]]; b,e,n=1,1+int(np.searchsorted(after,1)),1
        while b<e: d[o[b:e]]=n; b,e,n=e,1+int(np.searchsorted(after,e)),n+1
        i=gi-len(TG)+len(TR) if len(TR)<len(TG) else gi
        s=TR[i].astype(np.int64); s=s[s!=goal][:200]
        est=d[led[s]]; est[led[s]<0]=30000
        true=D[gi][NEXT[s]].astype(int); tb=true==true.min(1,keepdims=True); eb=(est==est.min(1,keepdims=True))&(est<30000)
        acc.append(((eb&tb).sum(1)/np.maximum(eb.sum(1),1)).mean()); own.append((eb==tb).all(1).mean())
    print(name,"outcomes",len(keys),"tried %.4f outcome right %.4f (of tried), best action right %.4f, sets equal %.4f"%(tried.mean(),right[tried].mean(),np.mean(acc),np.mean(own)),flush=True)
t=time.time()
for n in (10,10,10,30):
    collect(n*1_000_000,"random"); report(f"{cnt.sum()/1e6:.0f}M {time.time()-t:.0f}s")
