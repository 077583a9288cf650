"""How right are most frequent outcomes and best actions, by random steps, and which states reach each other? Writes labels.csv"""
import csv,numpy as np
exec(open("..py").read().replace(".","."))
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
A=5; rng=np.random.default_rng(0); K=20000
GOALS=np.random.default_rng(5).choice(S,300,replace=False); D=bfs(GOALS)
keys=np.zeros(0,np.int64); cnt=np.zeros(0,np.int64)
def collect(n):
    global keys,cnt
    out=[]
    for t in range(n//K):
        if t%50==0: s=rng.integers(S,size=K)
        a=rng.integers(A,size=K); s2=step(s,a,rng); out.append((s*A+a)*S+s2); s=s2
    k=np.concatenate([keys,*out]); c=np.concatenate([cnt,np.ones(len(k)-len(keys),np.int64)])
    o=np.argsort(k,kind="stable"); k=k[o]; c=c[o]; first=np.flatnonzero(np.r_[True,k[1:]!=k[:-1]]); keys=k[first]; cnt=np.add.reduceat(c,first)
def report():
    pair=keys//S; o=np.lexsort((cnt,pair)); last=np.r_[pair[o][1:]!=pair[o][:-1],True]; like=np.full(S*A,-1); like[pair[o][last]]=keys[o][last]%S
    tried=like>=0; led=like.reshape(S,A); src=np.repeat(np.arange(S),A)[tried]; dst=like[tried]; k=src!=dst
    g=csr_array((np.ones(k.sum()),(dst[k],src[k])),shape=(S,S)); g.sum_duplicates()
    strong=np.bincount(connected_components(g,True,"strong")[1]).max()/S
    acc=[];eq=[];ways=[]; r=np.random.default_rng(9)
    for gi,goal in enumerate(GOALS):
        o,p=breadth_first_order(g,goal); d=np.full(S+1,30000,np.int64); d[goal]=0
        place=np.empty(S,np.int64); place[o]=np.arange(len(o)); after=place[p[o[1:]]]; b,e,n=1,1+int(np.searchsorted(after,1)),1
        while b<e: d[o[b:e]]=n; b,e,n=e,1+int(np.searchsorted(after,e)),n+1
        s=r.integers(S,size=200); s=s[s!=goal]
        est=d[led[s]]; est[led[s]<0]=30000
        true=D[gi][NEXT[s]].astype(int); tb=true==true.min(1,keepdims=True); eb=(est==est.min(1,keepdims=True))&(est<30000)
        ways.append((est.min(1)<30000).mean()); acc.append(((eb&tb).sum(1)/np.maximum(eb.sum(1),1)).mean()); eq.append((eb==tb).all(1).mean())
    return [int(cnt.sum()),len(keys),round(tried.mean(),4),round(strong,4),round((like==NEXT.ravel())[tried].mean(),4),round(np.mean(ways),4),round(np.mean(acc),4),round(np.mean(eq),4)]
w=csv.writer(open("..csv","w"),lineterminator="\n"); w.writerow("random_steps,outcomes,tried,largest_strong_component,outcome_right,ways_known,best_action_right,best_actions_equal".split(","))
for n in (1,3,6,10,10,30):
    collect(n*1_000_000); row=report(); print(row,flush=True); w.writerow(row)
