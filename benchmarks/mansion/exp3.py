# Scratch work, kept in the history only: run in this folder with PYTHONPATH at the repository: prep.py, routes.py, prep20.py, then exp.py or exp3.py with the options in docs/results/scale/regression.csv; lib.py is the agent itself
from base import *
import argparse, os, csv
p=argparse.ArgumentParser()
A=p.add_argument
A("--name",default="x"); A("--minutes",type=float,default=2); A("--g",type=int,default=16); A("--k",type=int,default=16); A("--uni",type=int,default=0)
A("--own",type=float,default=.5); A("--trunk",default="mlp"); A("--width",type=int,default=512); A("--depth",type=int,default=1); A("--emb",type=int,default=128); A("--hidden",type=int,default=256)
A("--head",default="distance"); A("--lr",type=float,default=1e-3); A("--gamma",type=float,default=.99); A("--decay",type=float,default=.75); A("--floor",type=float,default=.1)
A("--sq",type=float,default=1.); A("--best",type=float,default=50.); A("--temp",type=float,default=.5); A("--ema",type=float,default=.999); A("--seed",type=int,default=0); A("--goals",type=int,default=2500)
A("--rolls",type=int,default=300); A("--evals",type=int,default=4); A("--save",default=""); A("--res",type=int,default=0); A("--bf16",type=int,default=0); A("--acc_gate",type=float,default=.9); A("--paired",type=int,default=0); A("--load",default=""); A("--clip",type=float,default=100.); A("--goal_own",type=int,default=0)
A("--ch",type=int,default=16); A("--kernel",type=int,default=5); A("--max_u",type=int,default=0); A("--agg",type=float,default=0.); A("--scale",type=float,default=0.)
a=p.parse_args(); th.set_num_threads(1); th.manual_seed(a.seed); rng=np.random.default_rng(a.seed)
D=np.load("D20.npy",mmap_mode="r"); goals=np.load("goals20.npy"); n_told=a.goals; told=goals[:n_told]; R=np.load("routes20.npy"); TR=np.load("test_routes20.npy"); NG=len(goals)
HW=24*24; FA=factors(np.arange(S)).astype(np.int64); N=N_IN
if a.trunk[:5]=="proxy":  # what a 5x5 convolution sees: block relative to agent, shared and at each cell
    ar,ac=mdp.agent//24,mdp.agent%24; br,bc=mdp.blocks[:,0]//24,mdp.blocks[:,0]%24; dr,dc=br-ar,bc-ac; near=(abs(dr)<=2)&(abs(dc)<=2)
    off=np.where(near,(dr+2)*5+dc+2,25); FA=np.concatenate([FA,(N+off)[:,None],(N+26+off*HW+mdp.agent)[:,None]],1) if a.trunk=="proxy" else np.concatenate([FA,(N+off)[:,None]],1); N=N+26+26*HW*(a.trunk=="proxy")
FA=th.as_tensor(FA)
act=F.gelu
class Trunk(nn.Module):
    def __init__(s):
        super().__init__(); W=a.width
        if a.trunk in("mlp","proxy","proxy0","pool"):
            s.first=nn.EmbeddingBag(N,W,mode="sum"); nn.init.normal_(s.first.weight,std=.5); s.bias=nn.Parameter(th.zeros(W))
            if a.trunk=="pool":  # convolution of pixels, largest response anywhere, beside the linear layer on pixels (here: FA)
                s.cv=nn.Conv2d(3,a.ch,a.kernel,1,a.kernel//2).to(memory_format=th.channels_last); s.pw=nn.Linear(a.ch,W,bias=False); nn.init.normal_(s.pw.weight,std=.25)
                m=mdp.render(np.arange(0,S,97)).astype(np.float32)/255; sd=m.std(0); var=sd>1e-4; med=np.median(sd[var]); s.mean=m.mean(0); s.scale=1/np.where(var,np.maximum(sd,med/2),med)*.25
            if a.trunk=="proxy": nn.init.zeros_(s.first.weight[N_IN+26:].data)
        else:
            c=dict(conv=(16,32,64),conv2=(16,24,32),conv0=(24,32))[a.trunk]
            if a.trunk=="conv0": s.cs=nn.ModuleList([nn.Conv2d(3,c[0],3,1,1),nn.Conv2d(c[0],c[1],4,4)]); n=c[1]*36
            else: s.cs=nn.ModuleList([nn.Conv2d(3,c[0],3,1,1),nn.Conv2d(c[0],c[1],4,2,1),nn.Conv2d(c[1],c[2],4,2,1)]); n=c[2]*36
            s.to(memory_format=th.channels_last); s.fc=nn.Linear(n,W)
            m=mdp.render(np.arange(0,S,97)).astype(np.float32)/255; sd=m.std(0); var=sd>1e-4; med=np.median(sd[var]); s.mean=m.mean(0); s.scale=1/np.where(var,np.maximum(sd,med/2),med)*.25
        s.layers=nn.ModuleList([nn.Linear(W,W) for _ in range(a.depth)])
    def low(s,x):
        z=s.first(FA[x])+s.bias
        if a.trunk=="pool":
            im=th.as_tensor((mdp.render(x.numpy()).astype(np.float32)*(1/255)-s.mean.astype(np.float32))*s.scale.astype(np.float32)).permute(0,3,1,2)
            r=F.relu(s.cv(im)).flatten(2); z=z+s.pw(r.amax(2))
        return act(z)
    def forward(s,x):
        if a.trunk in("mlp","proxy","proxy0","pool"): x=s.low(x)
        else:
            im=(mdp.render(x.numpy()).astype(np.float32)/255-s.mean)*s.scale; x=th.as_tensor(im.astype(np.float32)).permute(0,3,1,2)
            for c in s.cs: x=act(c(x))
            x=act(s.fc(x.flatten(1)))
        for l in s.layers: x=x+act(l(x)) if a.res else act(l(x))
        return x
class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.trunk=Trunk(); W,e,H=a.width,a.emb,a.hidden
        if a.head=="distance": s.se=nn.Linear(W,5*e); s.ge=nn.Linear(W,e); s.ls=nn.Parameter(th.zeros(())); s.o=nn.Parameter(th.zeros(()))
        elif a.head=="bilinear": s.se=nn.Linear(W,5*e); s.ge=nn.Linear(W,e); s.b=nn.Linear(W,5)
        elif a.head=="mrn":  # sum over 8 groups of max over components of relu(f-h), plus a potential
            s.se=nn.Linear(W,5*e); s.ge=nn.Linear(W,e); s.al=nn.Parameter(th.zeros(8)); s.b=nn.Linear(W,5); s.gb=nn.Linear(W,1)
        else:
            s.se=nn.Linear(W,H); s.ge=nn.Linear(W,H); s.mid=nn.ModuleList([nn.Linear(H,H) for _ in range(1 if a.head=="pair2" else 2 if a.head=="pair3" else 0)]); s.out=nn.Linear(H,5)
            if a.head=="gate": s.s2=nn.Linear(W,H); s.g2=nn.Linear(W,H)
    def embed(s,x,y):
        f=s.trunk(th.cat([x,y])); return s.left(f[:len(x)]),s.ge(f[len(x):]),f
    def left(s,f):
        return s.se(f)
    def head(s,As,B,paired):
        e=a.emb
        if a.head=="distance":
            As=As.view(-1,5,e)
            if paired: d=(As-B[:,None]).square().sum(2)
            else:
                n=len(As); As=As.flatten(0,1); d=(As.square().sum(1)[:,None]+B.square().sum(1)-2*As@B.T).clamp(min=0).view(n,5,-1).transpose(1,2)
            return s.o-s.ls.exp()*d.log1p()*10
        if a.head=="bilinear":
            As=As.view(-1,5,e); return (As*B[:,None]).sum(2)/e**.5*10 if paired else (As.flatten(0,1)@B.T).view(len(As),5,-1).transpose(1,2)/e**.5*10
        if a.head=="mrn":
            As=As.view(-1,5,e); d=(As[:,None]-B[None,:,None]) if not paired else As-B[:,None]
            d=d.view(*d.shape[:-1],8,e//8); return -(F.relu(d).amax(-1)*s.al.exp()).sum(-1)*10
        h=act(As+B) if paired else act(As[:,None]+B[None])
        for m in s.mid: h=(h+act(m(h))) if a.res else act(m(h))
        return s.out(h)*10
    def q(s,x,y,paired=False):
        As,B,_=s.embed(x,y); return s.head(As,B,paired)
net=Net(); 
if a.load: net.load_state_dict(th.load(a.load))
ema=Net(); ema.load_state_dict(net.state_dict())
opt=th.optim.Adam(net.parameters(),lr=a.lr,fused=True)
n_par=sum(q.numel() for q in net.parameters())
table=th.as_tensor((1-a.gamma**np.arange(256.))/(1-a.gamma) if a.gamma<1 else np.arange(256.),dtype=th.float32)
tr=np.random.default_rng(7)
def test_pairs(lo,hi,n=4000):
    i=tr.integers(lo,hi,size=n); j=tr.integers(TR.shape[1],size=n); s=TR[i,j].astype(np.int64); m=s!=goals[i]; i,s=i[m],s[m]
    dn=D[i[:,None],NEXT[s]]; return th.as_tensor(s),th.as_tensor(goals[i]),th.as_tensor(dn==dn.min(1,keepdims=True))
TEST=[test_pairs(0,n_told),test_pairs(NG-500,NG)]
def accuracy():
    out=[]
    with th.no_grad():
        for s,g,b in TEST: out.append(float(b.gather(1,ema.q(s,g,True).argmax(1,keepdim=True)).float().mean()))
    return out
def success(gs,n=None,horizon=400,seed=5):
    r=np.random.default_rng(seed); gs=gs[:n or a.rolls]; starts=r.integers(S,size=len(gs)); G=th.as_tensor(gs)
    with th.no_grad():
        B=ema.ge(ema.trunk(G))
        pol=lambda s,i: ema.head(ema.left(ema.trunk(th.as_tensor(s))),B[i],True).argmax(1).numpy()
        return float(rollout(pol,gs,starts,horizon,seed)[0].mean())
cpu0=time.process_time(); w0=time.time(); u=0; limit=a.minutes*60; nxt=1/a.evals; ravg=0.; extra=None
def row(final,acc,su):
    f="table20.csv"; new=not os.path.exists(f)
    if final:
        with open(f,"a") as h:
            if new: h.write("name,network,draws,updates,cpu_minutes,accuracy_told,accuracy_untold,success_told,success_untold,options\n")
            h.write(f"{a.name},{a.trunk}-{a.width}x{a.depth}{'r' if a.res else ''}-{a.head}{a.hidden if a.head[:4]=='pair' else a.emb},{a.g}x{a.k}+{a.uni} own{a.own},{u},{(time.process_time()-cpu0)/60:.2f},{acc[0]:.4f},{acc[1]:.4f},{su[0]:.3f},{su[1]:.3f},{' '.join(sys.argv[1:])}\n")
pool=[R[i] for i in range(n_told)]
while True:
    prog=u/a.max_u if a.max_u else (time.process_time()-cpu0)/limit
    if prog>=nxt or prog>=1:
        c=time.process_time(); acc=accuracy(); su=(-1,-1)
        if acc[0]>=a.acc_gate or prog>=1: su=(success(told),success(goals[NG-500:]))
        print(json.dumps(dict(name=a.name,prog=round(prog,2),u=u,acc=[round(x,4) for x in acc],su=[round(x,3) for x in su],train=round(ravg,4),loss=round(lo,3),par=n_par,cpu=round((time.process_time()-cpu0)/60,2),wall=round(time.time()-w0))),flush=True)
        if prog>=1: row(True,acc,su); break
        cpu0+=time.process_time()-c; nxt+=1/a.evals
    for gp in opt.param_groups: gp["lr"]=a.lr*(1-prog)*min(1,u/200)
    gi=rng.choice(n_told,size=a.g,replace=False); own=np.repeat(np.arange(a.g),a.k); si=R[gi[own],rng.integers(R.shape[1],size=a.g*a.k)].astype(np.int64)
    if a.uni: si=np.concatenate([si,rng.integers(S,size=a.uni)])
    if a.paired:
        dn=D[gi[own][:,None],NEXT[si]][:,None]; d0=D[gi[own],si][:,None]; y=told[gi]
        As,B,_=net.embed(th.as_tensor(si),th.as_tensor(y)); q=net.head(As,B[own],True)[:,None]; eye=None
    else:
        dn=D[gi[None,:,None],NEXT[si][:,None,:]]; d0=D[gi[None,:],si[:,None]]
        q=net.q(th.as_tensor(si),th.as_tensor(told[gi]))
    dn=th.as_tensor(dn); d0=th.as_tensor(d0)
    known=(d0>0).float()
    w=(a.decay**d0.float()+a.floor)*known; w=w/w.mean()
    best=dn==dn.amin(2,keepdim=True)
    if not a.paired:
        ow=th.zeros_like(w); ow[th.arange(len(own)),th.as_tensor(own)]=known[th.arange(len(own)),th.as_tensor(own)]*(w.numel()/len(own)); w=(1-a.own)*w+a.own*ow
    lg=q/a.temp; ce=lg.logsumexp(2)-lg.masked_fill(~best,-th.inf).logsumexp(2); err=a.best*ce
    if a.sq: err=err+a.sq*(q+1+a.gamma*table[dn.long()]).square().mean(2)
    loss=(w*err).mean(); opt.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(net.parameters(),a.clip); opt.step(); u+=1
    if u%20==0:
        with th.no_grad():
            ok=best.gather(2,q.argmax(2,keepdim=True)).squeeze(2).float()
            oo=ok[:,0] if a.paired else ok[th.arange(len(own)),th.as_tensor(own)]
            ravg=.95*ravg+.05*float(oo.mean()); lo=float(loss.detach())
    with th.no_grad():
        sh=max(1-a.ema,9/(10+u)); th._foreach_lerp_(list(ema.parameters()),list(net.parameters()),sh)
if a.save: th.save(ema.state_dict(),a.save)
