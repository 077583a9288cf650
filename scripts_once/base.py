import numpy as np, torch as th, time, sys, json, math
from torch import nn
import torch.nn.functional as F
sys.path.insert(0,'.')
import gymnasium as gym, gym_twoRooms
from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import TwoRoomsMDP
from scipy.sparse import csr_matrix
mdp=TwoRoomsMDP(Layout.named("mansion"))
S=mdp.n_states; NEXT=np.asarray(mdp.next_state)  # S,5
def bfs(goals):
    """deterministic distance from every state to each goal, uint8 [S, G]"""
    src=np.repeat(np.arange(S),5); dst=NEXT.ravel(); keep=src!=dst
    order=np.argsort(dst[keep],kind="stable"); rs=src[keep][order]; ptr=np.searchsorted(dst[keep][order],np.arange(S+1))
    D=np.full((len(goals),S),255,np.uint8)
    for i,g in enumerate(goals):
        d=D[i]; d[g]=0; front=np.array([g]); k=0
        while len(front):
            k+=1
            n=ptr[front+1]-ptr[front]
            idx=np.repeat(ptr[front]-np.concatenate([[0],np.cumsum(n)[:-1]]),n)+np.arange(n.sum())
            p=rs[idx]; p=p[d[p]==255]; d[p]=k; front=np.unique(p)
            front=front[d[front]==k]
    return D
def step(states, actions, rng):
    """true dynamics, vectorised"""
    a=actions.copy(); slip=mdp.slips[states]&(rng.random(len(states))<mdp.slip_probability)
    a[slip]=rng.integers(4,size=slip.sum()); s=NEXT[states,a]
    sets=rng.choice(len(mdp.closing_probability),size=len(s),p=mdp.closing_probability)
    return mdp.closed_state[s,sets].astype(np.int64)
def factors(states):
    """indices of one-hots: agent, block, doors -> [n,4] into a table"""
    c=mdp.layout.height*mdp.layout.width
    return np.stack([mdp.agent[states], c+mdp.blocks[states,0], 2*c+mdp.doors_open[states,0], 2*c+2+mdp.doors_open[states,1]],1)
N_IN=2*mdp.layout.height*mdp.layout.width+4
def rollout(policy, goals, starts, horizon, seed=0):
    rng=np.random.default_rng(seed); s=starts.copy(); done=s==goals; steps=np.where(done,0,-1)
    for t in range(1,horizon+1):
        act=~done
        if not act.any(): break
        a=policy(s[act],np.flatnonzero(act)); s[act]=step(s[act],a,rng); new=act&(s==goals); steps[new]=t; done|=new
    return done, steps
