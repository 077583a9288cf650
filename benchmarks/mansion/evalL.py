import sys
sys.argv=["exp3.py","--load","L30.pt","--sq","0","--goals","19500"]
src=open("exp3.py").read(); exec(src[:src.index("cpu0=time.process_time()")])
r=np.random.default_rng(11); gs=r.choice(S,5000,replace=False); starts=r.integers(S,size=5000); G=th.as_tensor(gs)
isin=np.isin(gs,told)
with th.no_grad():
    B=ema.ge(ema.trunk(G))
    for eps in (0.,.1):
        e=np.random.default_rng(12)
        def pol(s,i):
            a=ema.head(ema.left(ema.trunk(th.as_tensor(s))),B[i],True).argmax(1).numpy(); m=e.random(len(a))<eps; a[m]=e.integers(5,size=m.sum()); return a
        ok,_=rollout(pol,gs,starts,400,5); print(eps,"all",ok.mean(),"told",ok[isin].mean(),isin.sum(),"never told",ok[~isin].mean(),flush=True)
